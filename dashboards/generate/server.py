"""Define the dashboard for one server."""

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

#: A matcher that excludes the wait classes of idle threads.
IDLE: Final = 'wait!~"idle|background_idle|user_sleep"'

_GLANCE: Final = (
    Panel(
        "Process",
        "stat",
        "none",
        (Query(level("mysqld_up", aggregate="min"), "process"),),
        "Whether the server's process is running.",
        "*ended*: it exited or was killed. It is reported for another hour.",
        (run("innoscope targets"), read("agent.md")),
        width=3,
        height=4,
        steps=((None, RED), (1, GREEN)),
        names=((0, "ended", RED), (1, "up", GREEN)),
    ),
    Panel(
        "SQL",
        "stat",
        "none",
        (Query(level("sql_up", aggregate="min"), "SQL"),),
        "Whether the server answered the agent's query in time.",
        "*no answer* while the process is up: it hangs, has no free connection (`max_connections`), or the "
        "account is wrong. Metrics from memory, stacks and probes are still available.",
        (run("innoscope doctor"), board("agent")),
        width=3,
        height=4,
        steps=((None, RED), (1, GREEN)),
        names=((0, "no answer", RED), (1, "answers", GREEN)),
    ),
    Panel(
        "Stopped or traced",
        "stat",
        "none",
        (
            Query(
                f"{level('mysqld_stopped', aggregate='max')} + 2 * {level('mysqld_traced', aggregate='max')}",
                "state",
            ),
        ),
        "Whether the process is stopped by a signal or traced by a debugger.",
        "Anything but *running*: a debugger is still attached. A traced server may run, but slowly.",
        (run("innoscope unstick"), read("toggles.md")),
        width=3,
        height=4,
        steps=((None, GREEN), (1, RED)),
        names=(
            (0, "running", GREEN),
            (1, "stopped", RED),
            (2, "traced", ORANGE),
            (3, "stopped, traced", RED),
        ),
    ),
    Panel(
        "Threads with work",
        "stat",
        "short",
        (Query(rate("thread_seconds", IDLE), "threads"),),
        "Average number of threads that are neither idle nor in SLEEP().",
        "Many times the number of CPUs, and rising: a queue. The panel below shows the wait classes.",
        (board("contention"), run("innoscope stacks --by wait")),
        width=3,
        height=4,
        steps=((None, GREEN), (50, ORANGE), (200, RED)),
    ),
    Panel(
        "Dirty headroom",
        "stat",
        "percentunit",
        (Query(level("buffer_pool_dirty_headroom_ratio", aggregate="min"), "headroom"),),
        "The dirty page limit minus the share of dirty pages.",
        "Below 0: flushing is too slow for the writes.",
        (board("dirty-page"), run("innoscope toggle show dirty_page_limit")),
        width=3,
        height=4,
        steps=((None, RED), (0, ORANGE), (0.1, GREEN)),
    ),
    Panel(
        "Checkpoint age",
        "stat",
        "percentunit",
        (Query(level("checkpoint_age_ratio", aggregate="max"), "of the most"),),
        "Share of the redo log that crash recovery would have to replay.",
        "From 7/8 on, InnoDB flushes at any rate; from 15/16 on, writers wait (MariaDB: from 100 %).",
        (board("dirty-page"), run("innoscope toggle show redo_size")),
        width=3,
        height=4,
        steps=((None, GREEN), (0.875, YELLOW), (0.9375, ORANGE), (0.96875, RED)),
    ),
    Panel(
        "Redo is full in",
        "stat",
        "s",
        (Query(f"clamp_max({level('redo_full_seconds', aggregate='min')}, 3600)", "seconds"),),
        "Time until the redo log is full at the current rate, limited to 1 h.",
        "Below 1 min: a stall is near.",
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
        "Settings that `innoscope toggle` changed and that have not been undone.",
        "A change whose reason is unknown.",
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
        "Average number of threads in each wait class, from snapshots of all threads once per second, "
        "without idle threads.",
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
        "Connections, connections that execute a statement, and all threads.",
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
        "Statements from clients per second.",
        "A drop that the clients did not cause.",
        (board("contention"), run("innoscope top")),
    ),
    Panel(
        "Statement latency",
        "timeseries",
        "s",
        (
            Query(quantile(0.5, "statement_seconds"), "p50"),
            Query(quantile(0.99, "statement_seconds"), "p99"),
        ),
        "Time from dispatch to the end of a statement. Empty unless the probe family `statement` is "
        "enabled, which is off by default.",
        "p99 far above p50: some statements wait. Their wait class is above.",
        (board("contention"), run("innoscope stacks --queries"), read("probes.md")),
    ),
    Panel(
        "CPU time by kind of thread",
        "timeseries",
        "short",
        (Query(rate("mysqld_cpu_seconds", by=["group"]), "{{group}}"),),
        "CPUs in use, by kind of thread.",
        "As many as the host has. Much CPU time with few statements: spinning, or an expensive query.",
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
        "Bytes that the process read from and wrote to storage, including binary logs and temporary files.",
        "At the limit of the device. (With large folios, the kernel counts a whole folio for each small "
        "write.)",
        (board("dirty-page"), run("innoscope profile --off-cpu")),
        width=6,
    ),
    Panel(
        "Memory",
        "timeseries",
        "bytes",
        (Query(level("mysqld_resident_memory_bytes"), "resident"),),
        "Resident memory of the process.",
        "Continuous growth toward the host's memory.",
        (run("innoscope toggle show release_memory"), read("toggles.md")),
        width=6,
    ),
    Panel(
        "Open files",
        "timeseries",
        "short",
        (Query(level("mysqld_open_files"), "files"),),
        "Open file descriptors of the process.",
        "Near `open_files_limit`: tables are closed and reopened all the time.",
        (board("contention"), run("innoscope stacks --wait opening_tables")),
        width=6,
    ),
    Panel(
        "Connections in use",
        "timeseries",
        "percentunit",
        (Query(ratio(level("connections"), level("connections_limit")), "in use"),),
        "Open connections as a share of `max_connections`.",
        "Above 95 %: soon no client can connect. A sudden rise: the application reconnects.",
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
        "Settings of this server that `innoscope toggle` changed.",
        "A change without a time limit, whose reason is unknown.",
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
            Query(level("toggle_unfinished_changes"), "unfinished"),
        ),
        "Changes by `innoscope toggle`, by result.",
        "*unfinished*: the tool was killed. *failed*: the journal has the reason.",
        (run("innoscope toggle history"), run("innoscope toggle undo")),
        width=5, height=5,
    ),
    Panel(
        "Server", "table", "none",
        (
            Query(f"max by (instance, server, flavour, version, symbols) ({series('mysqld_info')})", ""),
            Query(f"time() - max by (instance, server) ({series('mysqld_start_time_seconds')})", ""),
        ),
        "The server's version, and the source of its symbols.",
        "*symbols* none or dynsym: few functions have symbols. Install a debug package or a symbol pack.",
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
    "One MySQL or MariaDB server at a glance: what its threads wait for, and why. If several servers are "
    "selected, counts are summed, and ratios and latencies show the worst server.",
    (
        Row("At a glance", _GLANCE),
        Row("What threads wait for", _WAITS),
        Row("Throughput", _THROUGHPUT),
        Row("Checkpoint and fsync", server_innodb.CHECKPOINT),
        Row("Buffer pool", server_innodb.POOL),
        Row("Read-ahead", server_innodb.READ_AHEAD),
        Row("Locks and purge", server_innodb.LOCKS),
        Row("The process", _PROCESS),
        Row("Changes, version", _ABOUT),
        Row("Start and stop", server_innodb.LIFECYCLE, collapsed=True),
    ),
)
