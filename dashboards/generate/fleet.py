"""Define the dashboard for all servers, worst first, based on dashboards/alerts/recording.yaml."""

from __future__ import annotations

from typing import Final

from generate import wait_colors
from generate.model import (
    BLUE,
    GREEN,
    ORANGE,
    RED,
    YELLOW,
    Column,
    Dashboard,
    Panel,
    Query,
    Row,
    board,
    read,
    run,
)  # fmt: skip
from generate.queries import SERVER, recorded
from generate.states import STATES

_STALLED: Final = "stalled_threads:rate5m"
_TO_SERVER: Final = (
    "/d/innoscope-server?${__url_time_range}&${datasource:queryparam}&${job:queryparam}"
    "&var-instance=${__data.fields.instance}&var-server=${__value.raw}"
)

_LEGEND: Final = "{{server}} at {{instance}}"
_BY: Final = ("instance", "server")

#: Columns of the table: (recording rule, heading, unit, thresholds).
_NUMBERS: Final = (
    (_STALLED, "stalled threads", "short", ((None, GREEN), (5, ORANGE), (50, RED))),
    ("busy_threads:rate5m", "busy threads", "short", ()),
    ("statements:rate5m", "statements", "ops", ()),
    ("mysqld_cpu_seconds:rate5m", "CPUs", "short", ()),
    ("connections:ratio", "connections", "percentunit", ((None, GREEN), (0.8, ORANGE), (0.95, RED))),
    ("buffer_pool_dirty_headroom_ratio:min5m", "dirty headroom", "percentunit",
     ((None, RED), (0, GREEN))),
    ("checkpoint_age_ratio:max5m", "checkpoint age", "percentunit",
     ((None, GREEN), (0.5, YELLOW), (0.75, ORANGE), (0.875, RED))),
    ("fsync_seconds:p99_5m", "fsync p99", "s", ((None, GREEN), (0.05, ORANGE), (0.5, RED))),
    ("row_lock_thread_seconds:rate5m", "in row locks", "short", ((None, GREEN), (10, ORANGE))),
    ("deadlock_search_seconds:rate5m", "deadlock search", "percentunit",
     ((None, GREEN), (0.1, ORANGE), (0.5, RED))),
    ("read_ahead_useful:ratio_rate5m", "useful read-ahead", "percentunit",
     ((None, RED), (0.5, ORANGE), (0.8, GREEN))),
    ("history_list_length:max5m", "history", "short", ((None, GREEN), (1_000_000, ORANGE))),
    ("toggles_in_force:count", "changes", "short", ((None, GREEN), (1, BLUE))),
    ("collectors_failing:count", "failing", "short", ((None, GREEN), (1, ORANGE))),
)  # fmt: skip


def _column(index: int) -> str:
    """Return the name of the merged table's field that holds the result of the query with this index."""
    return f"Value #{chr(ord('A') + index)}"


_STATE: Final = recorded("state:score")


def _count(title: str, lowest: int, below: int, shows: str, bad: str, step: str, width: int = 5) -> Panel:
    """Return a panel that counts the servers whose state is at least ``lowest`` and less than ``below``."""
    inside = f"{_STATE} >= {lowest} < {below}"
    return Panel(
        title, "stat", "none", (Query(f"count({inside}) or vector(0)", "servers"),), shows, bad,
        (board("server"), run(step)), width=width, height=4, steps=((None, GREEN), (1, RED)),
    )  # fmt: skip


_TILES: Final = (
    _count(
        "Down", 230, 300,
        "Servers whose process has exited or is stopped by a signal, and servers that no agent reports and "
        "that were reported within the last hour. A server that exited is reported for another hour, or "
        "until it runs if it is configured in agent.toml.",
        "More than 0.", "innoscope targets", width=4,
    ),
    _count(
        "SQL does not answer", 220, 230, "Servers that do not answer SQL.",
        "More than 0: the server hangs, has no free connection, or the account is wrong.", "innoscope doctor",
    ),
    _count(
        "With severe findings", 180, 220,
        "Servers for which `innoscope diagnose` reports a score of 80 or more.",
        "More than 0.", "innoscope diagnose",
    ),
    _count(
        "Traced, or no stacks", 110, 180,
        "Servers that a debugger traces, or whose agent gets no stacks from the sensor. Their stalls may be "
        "missed.",
        "More than 0.", "innoscope doctor",
    ),
    Panel(
        "Above the dirty limit", "stat", "none",
        (Query(f"count({recorded('buffer_pool_dirty_headroom_ratio:min5m')} < 0) or vector(0)", "servers"),),
        "Servers with more dirty pages than their limit, in the last 5 min.",
        "The same servers for hours.",
        (board("server"), run("innoscope toggle show dirty_page_limit")),
        width=5, height=4, steps=((None, GREEN), (1, RED)),
    ),
)  # fmt: skip

_TIMELINE: Final = Panel(
    "State of the twenty worst servers", "state-timeline", "none", (Query(f"topk(20, {_STATE})", _LEGEND),),
    "When each server was down, did not answer, or had findings as reported by `innoscope diagnose`. The "
    "color of a finding is its score.",
    "Many servers at the same time: the cause is shared storage, network or a deployment.",
    (board("server"), run("innoscope diagnose"), read("diagnose.md")),
    width=24, height=8, bands=STATES,
)  # fmt: skip

_TABLE: Final = (
    Panel(
        "Servers, worst first", "table", "short",
        (Query(_STATE, ""), *(Query(recorded(rule), "") for rule, *_ in _NUMBERS)),
        "One row per server: its state, and values of the last 5 min. Click a server to open its dashboard, "
        "an agent to open its page.",
        "Red cells. Servers that are down are at the top. Servers in the same state are sorted by stalled "
        "threads, which users notice first.",
        (board("server"), board("contention"), board("dirty-page"), read("dashboards.md")),
        width=24, height=12, sort=("state", "stalled threads"),
        columns=(
            Column(_column(0), "state", bands=STATES),
            Column("server", "server", link=_TO_SERVER),
            Column("instance", "agent", link="http://${__value.raw}/"),
            *(
                Column(_column(index), title, unit=unit, steps=steps)
                for index, (_, title, unit, steps) in enumerate(_NUMBERS, start=1)
            ),
        ),
    ),
)  # fmt: skip


def _worst(title: str, rule: str, unit: str, bad: str, *then: str, down: bool = False) -> Panel:
    """Return a panel with the ten servers that have the highest values of a recording rule.

    With ``down``, the panel shows the lowest values instead.
    """
    pick = "bottomk" if down else "topk"
    which = "lowest" if down else "highest"
    return Panel(
        title, "timeseries", unit, (Query(f"{pick}(10, {recorded(rule)})", _LEGEND),),
        f"The ten servers with the {which} values, over 5 min.", bad,
        (board("server"), *(board(name) for name in then)),
        width=6, least=None if down else 0,
    )  # fmt: skip


_SHARE: Final = Panel(
    "What the fleet waits for", "timeseries", "short",
    (
        Query(f"sum by (wait) (server_wait:innoscope_thread_seconds:rate5m{{{SERVER}}})", "{{wait}}"),
    ),
    "Threads of all servers by wait class, without idle threads.",
    "A class that grows on all servers at the same time: the cause is storage or network, not one "
    "application.",
    (board("contention"), read("waits.md")),
    width=12, stacked=True, colors=wait_colors.of(wait_colors.palette().keys() - {"idle", "background_idle"}),
)  # fmt: skip

_WAITING: Final = (
    _SHARE,
    _worst("Stalled threads", _STALLED, "short", "Tens, for minutes.", "contention"),
    _worst("Busy threads", "busy_threads:rate5m", "short", "Many times the number of CPUs.", "contention"),
)  # fmt: skip

_STORAGE: Final = (
    _worst("fsync p99", "fsync_seconds:p99_5m", "s",
           "One host far above the others: its storage is slow.", "dirty-page"),
    _worst("Checkpoint age", "checkpoint_age_ratio:max5m", "percentunit", "Above 87.5 %.", "dirty-page"),
    _worst("Dirty headroom", "buffer_pool_dirty_headroom_ratio:min5m", "percentunit",
           "Below 0: the limit is exceeded.", "dirty-page", down=True),
    _worst("Waits for a free page", "free_block_waits:rate5m", "ops", "More than 0.", "dirty-page"),
)  # fmt: skip

_LOAD: Final = (
    _worst("Statements", "statements:rate5m", "ops", "One server with most of the load."),
    _worst("CPUs in use", "mysqld_cpu_seconds:rate5m", "short", "As many as the host has."),
    _worst("Connections", "connections:ratio", "percentunit", "Above 95 %: soon no client can connect."),
    _worst("Pages read", "buffer_pool_pages_read:rate5m", "ops", "At the limit of the device."),
)

_MORE_LOCKS: Final = (
    _worst("Threads in row locks", "row_lock_thread_seconds:rate5m", "short", "Tens.", "contention"),
    _worst("Row-lock waits", "row_lock_waits:rate5m", "ops", "As many as statements.", "contention"),
    _worst("Deadlock search", "deadlock_search_seconds:rate5m", "percentunit", "Above 10 %.", "contention"),
    _worst("Spin rounds", "spin_rounds:rate5m", "ops", "Millions.", "contention"),
    _worst("Spinning threads", "spin_thread_seconds:rate5m", "short", "One thread per CPU.", "contention"),
    _worst("History list", "history_list_length:max5m", "short", "Growth for hours.", "dirty-page"),
)  # fmt: skip

_MORE_STORAGE: Final = (
    _worst("fsyncs", "fsync_seconds_count:rate5m", "ops", "At the limit of the device.", "dirty-page"),
    Panel(
        "fsync by kind of file", "timeseries", "s",
        (
            Query(f"max by (file) (server_file:innoscope_fsync_seconds:p99_5m{{{SERVER}}})", "{{file}}"),
        ),
        "The p99 of the worst server, for each kind of file.",
        "*redo* above 10 ms.",
        (board("dirty-page"), read("waits.md")), width=6,
    ),
    _worst("Redo written", "redo_written_bytes:rate5m", "Bps",
           "A jump without more statements.", "dirty-page"),
    _worst("Dirty pages", "buffer_pool_dirty_ratio:max5m", "percentunit", "Near their limit.", "dirty-page"),
    _worst("Pages written", "buffer_pool_pages_written:rate5m", "ops",
           "A jump on many hosts at the same time: a scheduled job.", "dirty-page"),
    _worst("Useful read-ahead", "read_ahead_useful:ratio_rate5m", "percentunit", "Below 50 %.", down=True),
)  # fmt: skip

_AGENT_LEGEND: Final = "{{instance}}"


def _agents(title: str, rule: str, unit: str, shows: str, bad: str) -> Panel:
    by = ("instance",) if rule.startswith("instance:") else ("instance", "server")
    legend = _LEGEND if len(by) > 1 else _AGENT_LEGEND
    return Panel(
        title, "timeseries", unit, (Query(f"topk(10, {recorded(rule, by=by)})", legend),), shows, bad,
        (board("agent"), run("innoscope doctor")), width=6,
    )  # fmt: skip


_AGENTS: Final = (
    _agents("Innoscope's CPU time", "instance:innoscope_own_cpu_seconds:rate5m", "percentunit",
            "The ten agents with the highest CPU time, including their sensors, as a share of one core.",
            "Above 5 %."),
    _agents("Innoscope's memory", "instance:innoscope_own_resident_memory_bytes:sum", "bytes",
            "The ten agents with the most memory, including their sensors.", "Above 200 MB."),
    _agents("Servers of an agent", "instance:innoscope_servers:count", "short",
            "The ten agents with the most servers.", "One less than before."),
    _agents("Cost of probes", "probe_overhead_ratio:avg5m", "percentunit",
            "The ten servers with the most expensive probes.", "Above the budget, 1 % by default."),
)  # fmt: skip

DASHBOARD: Final = Dashboard(
    "innoscope-fleet",
    "Innoscope / Fleet",
    "All servers, worst first: those that are down, those that do not answer, those with findings. It needs "
    "the recording rules of dashboards/alerts/recording.yaml in Prometheus.",
    (
        Row("State", (_TIMELINE, *_TILES)),
        Row("Worst first", _TABLE),
        Row("Waiting", _WAITING),
        Row("Storage", _STORAGE),
        Row("Load", _LOAD),
        Row("More about locks", _MORE_LOCKS, collapsed=True),
        Row("More about storage", _MORE_STORAGE, collapsed=True),
        Row("Agents", _AGENTS, collapsed=True),
    ),
    one_server=False,
)
