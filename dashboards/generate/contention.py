"""Locks and latches: who waits for whom, and what the waiting costs."""

from __future__ import annotations

from typing import Final

from generate.model import STACKS, Dashboard, Panel, Query, Row, board, read, run
from generate.queries import calls, inside, level, quantile, rate, ratio

#: Wait classes in which a thread waits for another one.
_LOCKISH: Final = (
    'wait=~"row_lock|metadata_lock|table_lock|user_lock|opening_tables|spin|mutex_wait|deadlock_search|group_commit'
    '|allocator"'
)
_WORK: Final = 'wait!~"idle|background_idle|user_sleep"'

_WHO: Final = (
    Panel(
        "Threads that wait for other threads",
        "timeseries",
        "short",
        (Query(f"{rate('thread_seconds', _LOCKISH, by=['wait'])} > 0", "{{wait}}"),),
        "Average number of threads in the wait classes of locks, latches and mutexes.",
        "A band that stays: everybody behind it waits for one. `row_lock` is the application's, `mutex_wait` "
        "and `spin` "
        "are the server's, `metadata_lock` is a DDL statement or `FLUSH TABLES`.",
        (STACKS, board("server"), run("innoscope stacks --by wait"), read("waits.md")),
        width=16,
        height=9,
        stacked=True,
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
        "Of the threads with work, those that wait for another thread.",
        "Above 50 %: more clients make it slower, not faster.",
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
        "Waiters for rows.",
        "Tens for long: one row, or one long transaction.",
        (run("innoscope stacks --wait row_lock --queries"), board("server")),
    ),
    Panel(
        "Row-lock waits",
        "timeseries",
        "ops",
        (Query(rate("row_lock_waits"), "waits"),),
        "Waits for row locks begun a second.",
        "As many as there are statements: a hot row.",
        (run("innoscope stacks --wait row_lock --queries"), run("innoscope toggle show thread_concurrency")),
    ),
    Panel(
        "Row-lock wait time",
        "timeseries",
        "s",
        (
            Query(quantile(0.5, "row_lock_wait_seconds"), "median"),
            Query(quantile(0.99, "row_lock_wait_seconds"), "99 of 100"),
        ),
        "How long waits for row locks took that ended.",
        "Towards `innodb_lock_wait_timeout` (50 s): they end in errors.",
        (run("innoscope stacks --wait row_lock --queries"), read("waits.md")),
    ),
)

_DEADLOCKS: Final = (
    Panel(
        "Deadlock searches",
        "timeseries",
        "ops",
        (Query(rate("deadlock_searches"), "searches"),),
        "Searches for a deadlock, one at each row-lock wait.",
        "Not the number is bad but what each costs, beside.",
        (run("innoscope trace deadlock_search"), board("server")),
        width=6,
    ),
    Panel(
        "Time of a search",
        "timeseries",
        "s",
        (Query(ratio(rate("deadlock_search_seconds"), f"({rate('deadlock_searches')} > 0)"), "on average"),),
        "Average time of a deadlock search.",
        "Milliseconds: it grows with the queue, and everybody waits for the mutex that it holds.",
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
        "Threads in a search on average; only one at a time can be.",
        "Above 10 %. At 100 % the server does nothing else.",
        (run("innoscope toggle show deadlock_detection"), run("innoscope toggle show thread_concurrency")),
        width=6,
    ),
    Panel(
        "Deadlocks",
        "timeseries",
        "ops",
        (Query(rate("deadlocks"), "found"),),
        "Deadlocks found a second (MySQL 5.5 and 5.6 do not tell).",
        "More than a few a minute: transactions take the same rows in different orders.",
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
        "Requests for a mutex or rw-lock that found it taken, and those that slept for it.",
        "Most spin waits end in a sleep: the holder is slow, or not on a CPU.",
        (run("innoscope stacks --wait mutex_wait"), run("innoscope toggle show spin_delay")),
        width=6,
    ),
    Panel(
        "Rounds of a spin wait",
        "timeseries",
        "short",
        (Query(ratio(rate("spin_rounds"), f"({rate('spin_waits')} > 0)"), "rounds"),),
        "How many rounds a spin wait takes on average (`innodb_sync_spin_loops` is the most).",
        "Near the most: spinning does not help, it only burns CPU time.",
        (run("innoscope toggle show spin_rounds"), board("server")),
        width=6,
    ),
    Panel(
        "Latch wait time",
        "timeseries",
        "s",
        (
            Query(quantile(0.5, "latch_wait_seconds"), "median"),
            Query(quantile(0.99, "latch_wait_seconds"), "99 of 100"),
        ),
        "How long threads slept for a latch.",
        "Above 10 ms: whoever holds it does I/O meanwhile.",
        (run("innoscope profile --off-cpu"), run("innoscope stacks --wait mutex_wait")),
        width=6,
    ),
    Panel(
        "Hot latches, by site",
        "timeseries",
        "ops",
        (Query(f"topk(10, {rate('latch_spin_waits', by=['site'])})", "{{site}}"),),
        "The ten sites (file:line of the request) with the most contended requests. Empty until the sensor "
        "runs with "
        "the probe family `spin`, which is off by default (MySQL 5.5 and 5.6; rw-locks also later).",
        "One site far above all others: that is the mutex.",
        (run("innoscope trace mutex_spin --callers"), read("probes.md")),
        width=6,
    ),
)

_MUTEXES: Final = (
    Panel(
        "Waits for the server's mutexes",
        "timeseries",
        "ops",
        (Query(f"topk(10, {calls('mutex_wait_seconds', by=['mutex'])})", "{{mutex}}"),),
        "Contended requests for exported mutexes such as `LOCK_open`.",
        "`LOCK_open` or `LOCK_thread_count` in the thousands: the table cache, or connecting.",
        (run("innoscope stacks --wait opening_tables"), run("innoscope stacks --wait mutex_wait")),
    ),
    Panel(
        "Threads that wait for them",
        "timeseries",
        "short",
        (Query(f"topk(10, {inside('mutex_wait_seconds', by=['mutex'])})", "{{mutex}}"),),
        "Threads in such a wait on average, by mutex.",
        "Above 1 for one of them.",
        (run("innoscope stacks --wait mutex_wait"), run("innoscope profile --off-cpu")),
    ),
    Panel(
        "Wait time, by mutex",
        "timeseries",
        "s",
        (Query(quantile(0.99, "mutex_wait_seconds", by=["mutex"]), "{{mutex}}"),),
        "99 of 100 waits for it were shorter.",
        "Above 10 ms: it is held over I/O.",
        (run("innoscope profile --off-cpu"), read("profile.md")),
    ),
)

_TABLES: Final = (
    Panel(
        "Tables opened",
        "timeseries",
        "ops",
        (Query(rate("table_opens"), "by the server"), Query(rate("innodb_table_opens"), "by InnoDB")),
        "Tables that had to be opened because they were not in the table cache.",
        "Tens a second on a server at work: `table_open_cache` is too small.",
        (run("innoscope stacks --wait opening_tables"), board("server")),
    ),
    Panel(
        "Index statistics",
        "timeseries",
        "ops",
        (Query(calls("statistics_update_seconds"), "collected"),),
        "How often index statistics are collected.",
        "As often as tables are opened: each open reads pages.",
        (run("innoscope stacks --wait statistics"), run("innoscope trace statistics_update --callers")),
    ),
    Panel(
        "Time to collect statistics",
        "timeseries",
        "s",
        (Query(quantile(0.99, "statistics_update_seconds"), "99 of 100"),),
        "Duration of collecting statistics of a table.",
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
        "Threads by wait class at the last look, idle ones included.",
        "Hundreds in one class that is not *idle*.",
        (STACKS, board("server"), run("innoscope top")),
        width=24,
        stacked=True,
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
        Row("Opening tables", _TABLES),
        Row("All threads", _SPREAD),
    ),
)
