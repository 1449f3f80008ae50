"""Define the dashboard for one server."""

from __future__ import annotations

from typing import Final

from generate import server_clients, server_innodb, wait_colors
from generate.model import (
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
from generate.queries import increase, level, quantile, rate, ratio, series
from generate.states import SERVER, STATES, findings, state

#: A matcher that excludes idle threads and threads in SLEEP().
IDLE: Final = 'wait!~"idle|background_idle|user_sleep"'
#: A matcher for the wait classes of stalled threads, as in the rule server:innoscope_stalled_threads:rate5m.
STALLED: Final = (
    'wait=~"row_lock|metadata_lock|table_lock|opening_tables|spin|mutex_wait|innodb_queue|redo_space|disk_full'
    '|free_page_wait|flush_wait|deadlock_search|change_buffer_merge|purge_delay|recovery|shutdown|allocator"'
)

_FINDINGS: Final = Panel(
    "State and findings",
    "state-timeline",
    "none",
    (
        Query(state(), "server"),
        Query(findings(), "{{finding}}"),
    ),
    "The server's state, and when `innoscope diagnose` would have reported each problem. The color is the "
    "finding's score.",
    "Red. While the server has *no stacks*, the agent gets none from the sensor, and a stall may be missed.",
    (run("innoscope diagnose"), read("diagnose.md"), STACKS),
    width=24,
    height=7,
    bands=STATES,
)

_TILES: Final = (
    Panel(
        "State",
        "stat",
        "none",
        (Query(state(), "state"),),
        "Whether the process runs, answers SQL, is stopped by a signal or traced by a debugger, and whether "
        "its stacks are available. A process that has exited is reported for another hour, or until it runs "
        "if it is configured in agent.toml.",
        "*SQL does not answer*: the server hangs, has no free connection (`max_connections`), or the account "
        "is wrong. *stopped*, *traced*: a debugger is still attached.",
        (run("innoscope targets"), run("innoscope doctor"), run("innoscope unstick")),
        width=4,
        height=4,
        bands=((0, "up", GREEN), *SERVER),
    ),
    Panel(
        "Stalled threads",
        "stat",
        "short",
        (Query(rate("thread_seconds", STALLED), "threads"),),
        "Average number of threads that wait for a lock, a latch, InnoDB's queue, space or a page.",
        "Tens: clients wait. The panel below shows for what.",
        (STACKS, board("contention"), run("innoscope stacks --by wait")),
        width=5,
        height=4,
        steps=((None, GREEN), (5, ORANGE), (50, RED)),
    ),
    Panel(
        "Checkpoint age",
        "stat",
        "percentunit",
        (Query(level("checkpoint_age_ratio", aggregate="max"), "of the maximum"),),
        "Share of the redo log that crash recovery would have to replay.",
        "From 7/8 on, InnoDB flushes at any rate. Writers wait from 15/16 on (up to MySQL 5.7 and MariaDB "
        "10.4), near 100 % (MySQL 8.0, MariaDB 10.5 and newer), or earlier (MySQL 8.0.30 and newer).",
        (board("dirty-page"), run("innoscope toggle show redo_size")),
        width=5,
        height=4,
        steps=((None, GREEN), (0.875, YELLOW), (0.9375, ORANGE), (0.96875, RED)),
    ),
    Panel(
        "Connections in use",
        "stat",
        "percentunit",
        (Query(ratio(level("connections"), level("connections_limit")), "in use"),),
        "Open connections as a share of `max_connections`.",
        "Above 95 %: soon no client can connect. A sudden rise: the application reconnects.",
        (run("innoscope stacks --queries"), run("innoscope toggle show max_connections")),
        width=5,
        height=4,
        steps=((None, GREEN), (0.8, ORANGE), (0.95, RED)),
    ),
    Panel(
        "Oldest transaction",
        "stat",
        "s",
        (Query(level("oldest_transaction_age_seconds", aggregate="max"), "age"),),
        "Age of the oldest transaction.",
        "Hours: it keeps locks, and purge cannot remove undo logs.",
        (run("innoscope diagnose"), run("innoscope stacks --queries")),
        width=5,
        height=4,
        steps=((None, GREEN), (600, ORANGE), (3600, RED)),
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
        width=16, height=10, stacked=True, colors=wait_colors.busy(),
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
        (STACKS, board("contention"), run("innoscope top")),
        width=12,
    ),
    Panel(
        "CPU time by kind of thread",
        "timeseries",
        "short",
        (Query(rate("mysqld_cpu_seconds", by=["group"]), "{{group}}"),),
        "CPUs in use, by kind of thread.",
        "As many as the host has. Much CPU time with few statements: spinning, or an expensive query.",
        (STACKS, run("innoscope profile"), board("contention")),
        width=12,
        stacked=True,
    ),
)

_LATENCY: Final = (
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
        width=24,
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
    ),
    Panel(
        "Memory",
        "timeseries",
        "bytes",
        (Query(level("mysqld_resident_memory_bytes"), "resident"),),
        "Resident memory of the process.",
        "Continuous growth toward the host's memory.",
        (run("innoscope toggle show release_memory"), read("toggles.md")),
    ),
    Panel(
        "Open files",
        "timeseries",
        "short",
        (Query(level("mysqld_open_files"), "files"),),
        "Open file descriptors of the process.",
        "Near `open_files_limit`: tables are closed and reopened all the time.",
        (board("contention"), run("innoscope stacks --wait opening_tables")),
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
        "*unfinished*: the tool was killed. *failed*: the journal shows the reason.",
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
        Row("State", (_FINDINGS, *_TILES)),
        Row("What threads wait for", _WAITS),
        Row("Throughput", _THROUGHPUT),
        Row("Flushing", server_innodb.FLUSHING),
        Row("Locks, purge, reads", server_innodb.LOCKS),
        Row("Buffer pool and redo, details", server_innodb.DETAILS, collapsed=True),
        Row("Read-ahead", server_innodb.READ_AHEAD, collapsed=True),
        Row("Transactions and clients", server_clients.CLIENTS, collapsed=True),
        Row("The process", _PROCESS, collapsed=True),
        Row("Changes, version", _ABOUT, collapsed=True),
        Row("Start and stop", server_innodb.LIFECYCLE, collapsed=True),
        Row("Only with the probe family statement", _LATENCY, collapsed=True),
    ),
)
