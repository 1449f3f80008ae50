"""One server at a glance."""

from __future__ import annotations

from typing import Final

from generate import server_innodb
from generate.model import (
    BLUE,
    GREEN,
    ORANGE,
    RED,
    STACKS,
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
from generate.queries import (
    increase,
    level,
    quantile,
    rate,
    ratio,
    series,
)  # fmt: skip

#: Waits in which nothing is wanted of the server.
IDLE: Final = 'wait!~"idle|background_idle|user_sleep"'

_GLANCE: Final = (
    Panel(
        "Process",
        "stat",
        "none",
        (Query(level("mysqld_up", how="min"), "process"),),
        "Whether the server's process is there.",
        "*gone*: it ended or was killed. Its series stay for an hour.",
        (run("innoscope targets"), read("agent.md")),
        width=3,
        height=4,
        steps=((None, RED), (1, GREEN)),
        names=((0, "gone", RED), (1, "up", GREEN)),
    ),
    Panel(
        "SQL",
        "stat",
        "none",
        (Query(level("sql_up", how="min"), "SQL"),),
        "Whether the server answered the agent's statement in time.",
        "*no answer* while the process is up: it hangs, is full (`max_connections`), or the account is "
        "wrong. The "
        "numbers from memory, stacks and probes go on.",
        (run("innoscope doctor"), board("agent")),
        width=3,
        height=4,
        steps=((None, RED), (1, GREEN)),
        names=((0, "no answer", RED), (1, "answers", GREEN)),
    ),
    Panel(
        "Held",
        "stat",
        "none",
        (Query(f"{level('mysqld_stopped', how='max')} + 2 * {level('mysqld_traced', how='max')}", "state"),),
        "Whether a signal has stopped the process, or a debugger holds it.",
        "Anything but *runs*: a debugger was left behind. A traced server may run, but slowly.",
        (run("innoscope unstick"), read("toggles.md")),
        width=3,
        height=4,
        steps=((None, GREEN), (1, RED)),
        names=((0, "runs", GREEN), (1, "stopped", RED), (2, "traced", ORANGE), (3, "stopped, traced", RED)),
    ),
    Panel(
        "Threads with work",
        "stat",
        "short",
        (Query(rate("thread_seconds", IDLE), "threads"),),
        "Threads that are neither idle nor asleep on purpose, on average.",
        "Many times the number of CPUs, and rising: a queue. What it waits for is in the panel below.",
        (board("contention"), run("innoscope stacks --by wait")),
        width=3,
        height=4,
        steps=((None, GREEN), (50, ORANGE), (200, RED)),
    ),
    Panel(
        "Dirty headroom",
        "stat",
        "percentunit",
        (Query(level("buffer_pool_dirty_headroom_ratio", how="min"), "headroom"),),
        "The limit of dirty pages minus what is dirty.",
        "Below 0: the limit does not hold, flushing is too slow for the writes.",
        (board("dirty-page"), run("innoscope toggle show dirty_page_limit")),
        width=3,
        height=4,
        steps=((None, RED), (0, ORANGE), (0.1, GREEN)),
    ),
    Panel(
        "Checkpoint age",
        "stat",
        "percentunit",
        (Query(level("checkpoint_age_ratio", how="max"), "of the most"),),
        "How much of the redo space a crash would have to replay.",
        "Above 75 % flushing is aggressive, above 87.5 % writers are made to flush or to wait.",
        (board("dirty-page"), run("innoscope toggle show redo_size")),
        width=3,
        height=4,
        steps=((None, GREEN), (0.5, YELLOW), (0.75, ORANGE), (0.875, RED)),
    ),
    Panel(
        "Redo is full in",
        "stat",
        "s",
        (Query(f"clamp_max({level('redo_full_seconds', how='min')}, 3600)", "seconds"),),
        "Time until the redo space is full at the present rate; an hour stands for longer, and for never.",
        "Under a minute: a stall is near.",
        (board("dirty-page"), run("innoscope toggle show io_capacity")),
        width=3,
        height=4,
        steps=((None, RED), (60, ORANGE), (600, GREEN)),
    ),
    Panel(
        "Changes in force",
        "stat",
        "none",
        (Query(f"{level('toggle_in_force')} or vector(0)", "toggles"),),
        "Settings that `innoscope toggle` changed and that were not taken back.",
        "More than 0 when nobody remembers why.",
        (run("innoscope toggle history"), read("toggles.md")),
        width=3,
        height=4,
        steps=((None, GREEN), (1, BLUE)),
    ),
)

_WAITS: Final = (
    Panel(
        "Threads by what they wait for", "timeseries", "short",
        (Query(f"{rate('thread_seconds', IDLE, by=['wait'])} > 0", "{{wait}}"),),
        "Average number of threads in each wait class, from the stacks of all threads once a second. Idle "
        "ones are "
        "left out.",
        "A band that grows while statements per second fall. `on_cpu` up to the number of CPUs is work; "
        "`row_lock`, `mutex_wait`, `redo_space`, `flush_wait` and `free_page_wait` are queues.",
        (STACKS, board("contention"), board("dirty-page"), run("innoscope stacks --by wait"),
         read("waits.md")),
        width=16, height=10, stacked=True,
    ),
    Panel(
        "Connections and threads", "timeseries", "short",
        (
            Query(level("threads", 'wait="idle"'), "idle"),
            Query(level("connections"), "connections"),
            Query(level("connections_running"), "running"),
            Query(level("mysqld_os_threads"), "threads of the process"),
        ),
        "Connections, those with a statement at work, and all threads.",
        "Running far above the number of CPUs: a queue.",
        (run("innoscope stacks --queries"), board("contention")),
        height=10,
    ),
)  # fmt: skip

_THROUGHPUT: Final = (
    Panel(
        "Statements",
        "timeseries",
        "ops",
        (Query(rate("statements"), "statements"),),
        "Statements from clients a second.",
        "A fall that the clients did not want.",
        (board("contention"), run("innoscope top")),
    ),
    Panel(
        "Statement latency",
        "timeseries",
        "s",
        (
            Query(quantile(0.5, "statement_seconds"), "median"),
            Query(quantile(0.99, "statement_seconds"), "99 of 100"),
        ),
        "Statements from dispatch to end. Empty until the sensor runs with the probe family `statement`, "
        "which is off "
        "by default.",
        "The 99th percentile far from the median: some statements wait; their class is above.",
        (board("contention"), run("innoscope stacks --queries"), read("probes.md")),
    ),
    Panel(
        "CPU time by kind of thread",
        "timeseries",
        "short",
        (Query(rate("mysqld_cpu_seconds", by=["group"]), "{{group}}"),),
        "CPUs in use, by what the threads are for.",
        "As many as the machine has. Much CPU and few statements: spinning, or one expensive query.",
        (STACKS, run("innoscope profile"), board("contention")),
        stacked=True,
    ),
)

_PROCESS: Final = (
    Panel(
        "Storage",
        "timeseries",
        "Bps",
        (Query(rate("mysqld_read_bytes"), "read"), Query(rate("mysqld_written_bytes"), "written")),
        "Bytes that the process caused to be read and written, binary log and temporary files included.",
        "At what the device can do. (A kernel with large folios counts a whole one for each small write.)",
        (board("dirty-page"), run("innoscope profile --off-cpu")),
        width=6,
    ),
    Panel(
        "Memory",
        "timeseries",
        "bytes",
        (Query(level("mysqld_resident_memory_bytes"), "resident"),),
        "Resident memory of the process.",
        "Growth without end, towards what the host has.",
        (run("innoscope toggle show release_memory"), read("toggles.md")),
        width=6,
    ),
    Panel(
        "Open files",
        "timeseries",
        "short",
        (Query(level("mysqld_open_files"), "files"),),
        "Open file descriptors of the process.",
        "Towards `open_files_limit`: tables are closed and opened all the time.",
        (board("contention"), run("innoscope stacks --wait opening_tables")),
        width=6,
    ),
    Panel(
        "Connections in use",
        "timeseries",
        "percentunit",
        (Query(ratio(level("connections"), level("connections_limit")), "in use"),),
        "Open connections as a share of `max_connections`.",
        "Above 95 %: soon nobody else gets in. All at once: the application retries.",
        (run("innoscope stacks --queries"), run("innoscope toggle show max_connections")),
        width=6,
    ),
)

_ABOUT: Final = (
    Panel(
        "Changes in force", "table", "none",
        (
            Query(f"max by (toggle, value, who) ({series('toggle_info')})", ""),
            Query(f"max by (toggle) ({series('toggle_since_timestamp_seconds')}) * 1000", ""),
            Query(f"max by (toggle) ({series('toggle_until_timestamp_seconds')}) * 1000", ""),
        ),
        "What `innoscope toggle` changed on this server: to what, by whom, since when, until when.",
        "One without an end that nobody remembers.",
        (run("innoscope toggle history"), run("innoscope toggle undo"), read("toggles.md")),
        width=10, height=5,
        columns=(
            Column("toggle", "toggle"), Column("value", "set to"), Column("who", "by"),
            Column("Value #B", "since", unit="dateTimeAsIso"),
            Column("Value #C", "until", unit="dateTimeAsIso"),
        ),
    ),
    Panel(
        "Changes made", "timeseries", "short",
        (
            Query(increase("toggle_changes", by=["result"]), "{{result}}"),
            Query(level("toggle_unfinished_changes"), "begun, no result"),
        ),
        "Changes by `innoscope toggle`, by what came of them.",
        "*begun, no result*: the tool was killed. *failed*: the journal says why.",
        (run("innoscope toggle history"), run("innoscope toggle undo")),
        width=5, height=5,
    ),
    Panel(
        "Server", "table", "none",
        (
            Query(f"max by (instance, server, flavour, version, symbols) ({series('mysqld_info')})", ""),
            Query(f"time() - max by (instance, server) ({series('mysqld_start_time_seconds')})", ""),
        ),
        "Which server this is, and where its names come from.",
        "*symbols* none or dynsym: probes and stacks know little; a debug package or a symbol pack mends it.",
        (run("innoscope doctor"), read("symbols.md")),
        width=9, height=5,
        columns=(
            Column("instance", "agent", link="http://${__value.raw}/"), Column("server", "server"),
            Column("flavour", "flavour"), Column("version", "version"), Column("symbols", "symbols"),
            Column("Value #B", "up for", unit="s"),
        ),
    ),
)  # fmt: skip

DASHBOARD: Final = Dashboard(
    "innoscope-server",
    "Innoscope / Server",
    "One MySQL or MariaDB server at a glance: what its threads wait for, and why. Several servers chosen: "
    "counts are "
    "added up, ratios and latencies show the worst.",
    (
        Row("At a glance", _GLANCE),
        Row("What threads wait for", _WAITS),
        Row("Throughput", _THROUGHPUT),
        Row("Checkpoint and fsync", server_innodb.CHECKPOINT),
        Row("Buffer pool", server_innodb.POOL),
        Row("Read-ahead", server_innodb.READ_AHEAD),
        Row("Locks and purge", server_innodb.LOCKS),
        Row("The process", _PROCESS),
        Row("Changed by hand; which server", _ABOUT),
        Row("Start and stop", server_innodb.LIFECYCLE, collapsed=True),
    ),
)
