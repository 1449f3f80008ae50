"""Define the dashboard for all servers, worst first, based on dashboards/alerts/recording.yaml."""

from __future__ import annotations

from typing import Final

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

_STALLED: Final = "stalled_threads:rate5m"
_TO_SERVER: Final = (
    "/d/innoscope-server?${__url_time_range}&${datasource:queryparam}&${job:queryparam}"
    "&var-instance=${__data.fields.instance}&var-server=${__value.raw}"
)

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


def _count(title: str, condition: str, shows: str, bad: str, step: str) -> Panel:
    """Return a panel that counts the servers for which the condition is true."""
    return Panel(
        title, "stat", "none", (Query(f"count({condition}) or vector(0)", "servers"),), shows, bad,
        (board("server"), run(step)), width=4, height=4, steps=((None, GREEN), (1, RED)),
    )  # fmt: skip


_GLANCE: Final = (
    Panel(
        "Servers", "stat", "none",
        (Query(f"count({recorded('mysqld_up:min5m')} or {recorded('sql_up:min5m')})", "servers"),),
        "Servers that the agents report. A server that exited is reported for another hour.",
        "Fewer than expected: an agent is down.",
        (board("agent"), run("innoscope targets")), width=4, height=4,
    ),
    _count(
        "Down or stopped",
        f"{recorded('mysqld_up:min5m')} == 0 or "
        f"{recorded('mysqld_stopped:max5m')} == 1",
        "Servers that had exited, or were stopped by a signal, at some time in the last 5 min.",
        "More than 0.", "innoscope unstick",
    ),
    _count(
        "SQL down", f"{recorded('sql_up:min5m')} == 0",
        "Servers that did not answer SQL at some time in the last 5 min.",
        "More than 0: the server hangs, has no free connection, or the account is wrong.", "innoscope doctor",
    ),
    _count(
        "Above the dirty limit", f"{recorded('buffer_pool_dirty_headroom_ratio:min5m')} < 0",
        "Servers with more dirty pages than their limit.",
        "The same servers for hours.", "innoscope toggle show dirty_page_limit",
    ),
    _count(
        "In a flushing storm", f"{recorded('checkpoint_age_ratio:max5m')} > 0.875",
        "Servers whose checkpoint age was in the last eighth of the redo space.",
        "More than 0.", "innoscope toggle show redo_size",
    ),
    _count(
        "With stalled threads", f"{recorded(_STALLED)} > 5",
        "Servers with more than 5 stalled threads: threads that wait for locks, latches, redo space or "
        "pages.",
        "More than 0.", "innoscope stacks --by wait",
    ),
)  # fmt: skip

_TABLE: Final = (
    Panel(
        "Servers, worst first", "table", "short",
        tuple(Query(recorded(rule), "") for rule, *_ in _NUMBERS),
        "One row per server, over the last 5 min. Click a server to open its dashboard, an agent to open "
        "its page.",
        "Red cells. The table is sorted by stalled threads, which users notice first.",
        (board("server"), board("contention"), board("dirty-page"), read("dashboards.md")),
        width=24, height=12, sort="stalled threads",
        columns=(
            Column("server", "server", link=_TO_SERVER),
            Column("instance", "agent", link="http://${__value.raw}/"),
            *(
                Column(_column(index), title, unit=unit, steps=steps)
                for index, (_, title, unit, steps) in enumerate(_NUMBERS)
            ),
        ),
    ),
)  # fmt: skip

_LEGEND: Final = "{{server}} at {{instance}}"


def _worst(title: str, rule: str, unit: str, bad: str, *then: str, down: bool = False) -> Panel:
    """Return a panel with the ten worst servers by a recording rule. With ``down``, low values are worst."""
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
    width=12, stacked=True,
)  # fmt: skip

_WORST: Final = (
    _SHARE,
    _worst("Stalled threads", _STALLED, "short", "Tens, for minutes.", "contention"),
    _worst("Threads in row locks", "row_lock_thread_seconds:rate5m", "short", "Tens.", "contention"),
    _worst("Row-lock waits", "row_lock_waits:rate5m", "ops", "As many as statements.", "contention"),
    _worst("Deadlock search", "deadlock_search_seconds:rate5m", "percentunit", "Above 10 %.", "contention"),
    _worst("Spin rounds", "spin_rounds:rate5m", "ops", "Millions.", "contention"),
    _worst("Spinning threads", "spin_thread_seconds:rate5m", "short", "One thread per CPU.", "contention"),
)  # fmt: skip

_STORAGE: Final = (
    _worst("fsync p99", "fsync_seconds:p99_5m", "s",
           "One host far above the others: its storage is slow.", "dirty-page"),
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
    _worst("Checkpoint age", "checkpoint_age_ratio:max5m", "percentunit", "Above 87.5 %.", "dirty-page"),
    _worst("Redo written", "redo_written_bytes:rate5m", "Bps",
           "A jump without more statements.", "dirty-page"),
    _worst("Dirty pages", "buffer_pool_dirty_ratio:max5m", "percentunit", "Near their limit.", "dirty-page"),
    _worst("Dirty headroom", "buffer_pool_dirty_headroom_ratio:min5m", "percentunit",
           "Below 0: the limit is exceeded.", "dirty-page", down=True),
    _worst("Waits for a free page", "free_block_waits:rate5m", "ops", "More than 0.", "dirty-page"),
    _worst("Pages read", "buffer_pool_pages_read:rate5m", "ops", "At the limit of the device."),
    _worst("Pages written", "buffer_pool_pages_written:rate5m", "ops",
           "A jump on many hosts at the same time: a scheduled job.", "dirty-page"),
    _worst("Useful read-ahead", "read_ahead_useful:ratio_rate5m", "percentunit", "Below 50 %.", down=True),
    _worst("History list", "history_list_length:max5m", "short", "Growth for hours.", "dirty-page"),
)  # fmt: skip

_LOAD: Final = (
    _worst("Statements", "statements:rate5m", "ops", "One server with most of the load."),
    _worst("CPUs in use", "mysqld_cpu_seconds:rate5m", "short", "As many as the host has."),
    _worst("Busy threads", "busy_threads:rate5m", "short", "Many times the number of CPUs.", "contention"),
    _worst("Connections", "connections:ratio", "percentunit", "Above 95 %: soon no client can connect."),
)

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
    "All servers, worst first, over the last five minutes. It needs the recording rules of "
    "dashboards/alerts/recording.yaml in Prometheus.",
    (
        Row("At a glance", _GLANCE),
        Row("Worst first", _TABLE),
        Row("Waiting", _WORST),
        Row("Storage", _STORAGE),
        Row("Load", _LOAD),
        Row("Agents", _AGENTS),
    ),
    one_server=False,
)
