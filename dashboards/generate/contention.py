"""Define the dashboard for lock and latch contention."""

from __future__ import annotations

from typing import Final

from generate import wait_colors
from generate.model import STACKS, Dashboard, Panel, Query, Row, board, read, run
from generate.queries import calls, inside, level, quantile, rate, ratio

#: The wait classes in which a thread waits for another thread.
_CLASSES: Final = (
    "row_lock", "metadata_lock", "table_lock", "user_lock", "opening_tables", "spin", "mutex_wait",
    "deadlock_search", "group_commit", "allocator",
)  # fmt: skip
_LOCKISH: Final = f'wait=~"{"|".join(_CLASSES)}"'
_WORK: Final = 'wait!~"idle|background_idle|user_sleep"'

_WHO: Final = (
    Panel(
        "Threads that wait for other threads",
        "timeseries",
        "short",
        (Query(f"{rate('thread_seconds', _LOCKISH, by=['wait'])} > 0", "{{wait}}"),),
        "Average number of threads in the wait classes of locks, latches and mutexes.",
        "A band that persists: its threads wait for one holder. `row_lock` is caused by the application, "
        "`mutex_wait` and `spin` by the server, `metadata_lock` by a DDL statement or `FLUSH TABLES`.",
        (STACKS, board("server"), run("innoscope stacks --by wait"), read("waits.md")),
        width=16,
        height=9,
        stacked=True,
        colors=wait_colors.of(_CLASSES),
    ),
    Panel(
        "Share that waits for others",
        "timeseries",
        "percentunit",
        (
            Query(
                ratio(rate("thread_seconds", _LOCKISH), f"({rate('thread_seconds', _WORK)} > 0)"), "waiting"
            ),
        ),
        "Share of the threads with work that wait for another thread.",
        "Above 50 %: more clients make the server slower, not faster.",
        (board("server"), run("innoscope profile --off-cpu")),
        height=9,
        most=1,
    ),
)

_ROW_LOCKS: Final = (
    Panel(
        "Threads that wait for a row lock",
        "timeseries",
        "short",
        (
            Query(level("row_lock_current_waits"), "now"),
            Query(inside("row_lock_wait_seconds"), "on average, waits that ended"),
            Query(rate("thread_seconds", 'wait="row_lock"'), "on average, by stacks"),
        ),
        "Threads that wait for row locks.",
        "Tens of threads for minutes: a hot row, or a long transaction.",
        (run("innoscope stacks --wait row_lock --queries"), board("server")),
    ),
    Panel(
        "Row-lock waits",
        "timeseries",
        "ops",
        (Query(rate("row_lock_waits"), "waits"),),
        "Row lock waits per second.",
        "As many as there are statements: a hot row.",
        (run("innoscope stacks --wait row_lock --queries"), run("innoscope toggle show thread_concurrency")),
    ),
    Panel(
        "Row-lock wait time",
        "timeseries",
        "s",
        (
            Query(quantile(0.5, "row_lock_wait_seconds"), "p50"),
            Query(quantile(0.99, "row_lock_wait_seconds"), "p99"),
        ),
        "Duration of row lock waits, counted when they end.",
        "Near `innodb_lock_wait_timeout` (50 s): the statements fail.",
        (run("innoscope stacks --wait row_lock --queries"), read("waits.md")),
    ),
)

_DEADLOCKS: Final = (
    Panel(
        "Deadlock searches",
        "timeseries",
        "ops",
        (Query(rate("deadlock_searches"), "searches"),),
        "Deadlock searches per second, one for each row lock wait.",
        "The number is harmless; see their duration in the panel on the right.",
        (run("innoscope trace deadlock_search"), board("server")),
        width=6,
    ),
    Panel(
        "Time of a search",
        "timeseries",
        "s",
        (Query(ratio(rate("deadlock_search_seconds"), f"({rate('deadlock_searches')} > 0)"), "on average"),),
        "Average time of a deadlock search.",
        "Milliseconds: the duration grows with the queue, and other threads wait for the mutex that it "
        "holds.",
        (run("innoscope trace deadlock_search --callers"), run("innoscope toggle show deadlock_detection")),
        width=6,
    ),
    Panel(
        "Share of wall time in searches",
        "timeseries",
        "percentunit",
        (
            Query(rate("deadlock_search_seconds"), "by probe"),
            Query(rate("thread_seconds", 'wait="deadlock_search"'), "by stacks"),
        ),
        "Average number of threads in a deadlock search; at most one thread can be.",
        "Above 10 %. At 100 %, the server does nothing else.",
        (run("innoscope toggle show deadlock_detection"), run("innoscope toggle show thread_concurrency")),
        width=6,
    ),
    Panel(
        "Deadlocks",
        "timeseries",
        "ops",
        (Query(rate("deadlocks"), "found"),),
        "Deadlocks per second (not available in MySQL 5.5 and 5.6).",
        "More than a few per minute: transactions lock the same rows in different orders.",
        (run("innoscope stacks --wait row_lock --queries"), read("waits.md")),
        width=6,
    ),
)

_LATCHES: Final = (
    Panel(
        "Latches",
        "timeseries",
        "ops",
        (
            Query(rate("spin_waits"), "spin waits"),
            Query(rate("spin_os_waits"), "ended in a sleep"),
            Query(calls("latch_wait_seconds"), "sleeps, by probe"),
        ),
        "Contended requests for a mutex or rw-lock, and those that had to sleep.",
        "Most spin waits end in a sleep: the holder is slow, or not on a CPU.",
        (run("innoscope stacks --wait mutex_wait"), run("innoscope toggle show spin_delay")),
    ),
    Panel(
        "Rounds of a spin wait",
        "timeseries",
        "short",
        (Query(ratio(rate("spin_rounds"), f"({rate('spin_waits')} > 0)"), "rounds"),),
        "Average number of rounds of a spin wait (`innodb_sync_spin_loops` is the maximum).",
        "Near the maximum: spinning only wastes CPU time.",
        (run("innoscope toggle show spin_rounds"), board("server")),
    ),
    Panel(
        "Latch wait time",
        "timeseries",
        "s",
        (
            Query(quantile(0.5, "latch_wait_seconds"), "p50"),
            Query(quantile(0.99, "latch_wait_seconds"), "p99"),
        ),
        "Time that threads slept while waiting for a latch.",
        "Above 10 ms: the holder does I/O.",
        (run("innoscope profile --off-cpu"), run("innoscope stacks --wait mutex_wait")),
    ),
)

_SITES: Final = (
    Panel(
        "Hot latches, by site",
        "timeseries",
        "ops",
        (Query(f"topk(10, {rate('latch_spin_waits', by=['site'])})", "{{site}}"),),
        "The ten sites (file:line of the request) with the most contended requests. Empty unless the probe "
        "family `spin` is enabled, which is off by default (MySQL 5.5 and 5.6; rw-locks also in later "
        "versions).",
        "One site far above all others: this latch is the bottleneck.",
        (run("innoscope trace mutex_spin --callers"), read("probes.md")),
        width=24,
    ),
)

_MUTEXES: Final = (
    Panel(
        "Waits for the server's mutexes",
        "timeseries",
        "ops",
        (Query(f"topk(10, {calls('mutex_wait_seconds', by=['mutex'])})", "{{mutex}}"),),
        "Contended requests for global mutexes such as `LOCK_open`.",
        "`LOCK_open` or `LOCK_thread_count` in the thousands: the table cache, or connecting.",
        (run("innoscope stacks --wait opening_tables"), run("innoscope stacks --wait mutex_wait")),
    ),
    Panel(
        "Threads that wait for them",
        "timeseries",
        "short",
        (Query(f"topk(10, {inside('mutex_wait_seconds', by=['mutex'])})", "{{mutex}}"),),
        "Average number of waiting threads, by mutex.",
        "Above 1 for one of them.",
        (run("innoscope stacks --wait mutex_wait"), run("innoscope profile --off-cpu")),
    ),
    Panel(
        "Wait time, by mutex",
        "timeseries",
        "s",
        (Query(quantile(0.99, "mutex_wait_seconds", by=["mutex"]), "{{mutex}}"),),
        "p99 of the wait time for a mutex.",
        "Above 10 ms: it is held during I/O.",
        (run("innoscope profile --off-cpu"), read("profile.md")),
    ),
)

_TABLES: Final = (
    Panel(
        "Tables opened",
        "timeseries",
        "ops",
        (Query(rate("table_opens"), "by the server"), Query(rate("innodb_table_opens"), "by InnoDB")),
        "Tables opened because they were not in the table cache.",
        "Tens per second on a busy server: `table_open_cache` is too small.",
        (run("innoscope stacks --wait opening_tables"), board("server")),
    ),
    Panel(
        "Index statistics",
        "timeseries",
        "ops",
        (Query(calls("statistics_update_seconds"), "collected"),),
        "Collections of index statistics per second.",
        "About as many as table opens: each open reads pages.",
        (run("innoscope stacks --wait statistics"), run("innoscope trace statistics_update --callers")),
    ),
    Panel(
        "Time to collect statistics",
        "timeseries",
        "s",
        (Query(quantile(0.99, "statistics_update_seconds"), "p99"),),
        "Time to collect the statistics of a table.",
        "Seconds: statements that open the table wait for it.",
        (run("innoscope stacks --wait statistics"), read("waits.md")),
    ),
)

_SPREAD: Final = (
    Panel(
        "All threads",
        "timeseries",
        "short",
        (Query(f"{level('threads', by=['wait'])} > 0", "{{wait}}"),),
        "Threads by wait class in the last snapshot, including idle threads.",
        "Hundreds in one class that is not *idle*.",
        (STACKS, board("server"), run("innoscope top")),
        width=24,
        stacked=True,
        colors=wait_colors.of(wait_colors.palette()),
    ),
)

DASHBOARD: Final = Dashboard(
    "innoscope-contention",
    "Innoscope / Contention",
    "Threads that wait for other threads: row locks, deadlock searches, latches, mutexes, opening tables.",
    (
        Row("Who waits for whom", _WHO),
        Row("Row locks", _ROW_LOCKS),
        Row("Deadlocks", _DEADLOCKS),
        Row("InnoDB's latches", _LATCHES),
        Row("The server's mutexes", _MUTEXES),
        Row("Opening tables", _TABLES, collapsed=True),
        Row("All threads", _SPREAD, collapsed=True),
        Row("Only with the probe family spin", _SITES, collapsed=True),
    ),
)
