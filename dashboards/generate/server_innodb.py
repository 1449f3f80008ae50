"""Define the InnoDB panels of the server dashboard: buffer pool, checkpoint, read-ahead, locks, recovery."""

from __future__ import annotations

from typing import Final

from generate.model import GREEN, ORANGE, RED, YELLOW, Panel, Query, board, read, run
from generate.queries import buckets, calls, increase, inside, level, rate, ratio

FLUSHING: Final = (
    Panel(
        "Checkpoint age and its zones",
        "timeseries",
        "percentunit",
        (
            Query(level("checkpoint_age_ratio", aggregate="max"), "checkpoint age"),
            Query(level("modified_age_ratio", aggregate="max"), "oldest modification"),
        ),
        "Ages as a share of the maximum: asynchronous flushing from 7/8 (yellow), synchronous from 15/16 "
        "(orange), forced checkpoints from 31/32 (red).",
        "Orange and red: writes wait for flushing. A saw-tooth into red: the redo log is too small.",
        (board("dirty-page"), run("innoscope stacks --wait redo_space")),
        most=1,
        steps=((None, GREEN), (0.875, YELLOW), (0.9375, ORANGE), (0.96875, RED)),
    ),
    Panel(
        "fsync latency",
        "heatmap",
        "s",
        (Query(buckets("fsync_seconds"), "{{le}}"),),
        "Distribution of the duration of all fsyncs.",
        "A second band above 10 ms: commits wait for the device. By kind of file: Life of a dirty page.",
        (board("dirty-page"), run("innoscope stacks --wait fsync_redo")),
    ),
    Panel(
        "Dirty pages against the limit", "timeseries", "percentunit",
        (
            Query(level("buffer_pool_dirty_ratio", aggregate="max"), "dirty"),
            Query(level("buffer_pool_dirty_limit_ratio", aggregate="max"), "limit"),
        ),
        "Dirty pages as a share of the buffer pool, as InnoDB counts them, and `innodb_max_dirty_pages_pct`.",
        "Above the limit for more than a few seconds: flushing does not keep up with writes.",
        (board("dirty-page"), run("innoscope toggle show dirty_page_limit")),
        lines=("limit",),
    ),
)  # fmt: skip

DETAILS: Final = (
    Panel(
        "Pages of the buffer pool", "timeseries", "short",
        (
            Query(f"{level('buffer_pool_data_pages')} - {level('buffer_pool_dirty_pages')}", "clean"),
            Query(level("buffer_pool_dirty_pages"), "dirty"),
            Query(level("buffer_pool_free_pages"), "free"),
            Query(level("buffer_pool_other_pages"), "other"),
            Query(level("buffer_pool_pages"), "all"),
        ),
        "Pages of the buffer pool by use.",
        "No free pages and most of them dirty: a thread that needs a page has to flush one. Much *other*: "
        "row locks or the adaptive hash index use up the pool.",
        (board("dirty-page"), run("innoscope trace buf_LRU_get_free_block --callers")),
        stacked=True, lines=("all",),
    ),
    Panel(
        "Reads and misses", "timeseries", "ops",
        (
            Query(rate("buffer_pool_pages_read"), "pages read"),
            Query(rate("buffer_pool_pages_written"), "pages written"),
            Query(rate("buffer_pool_reads"), "reads that waited"),
        ),
        "Pages read and written, and logical reads that had to wait for storage.",
        "Waiting reads at the limit of the device: the working set does not fit into the buffer pool.",
        (run("innoscope stacks --wait page_read"), read("waits.md")),
    ),
    Panel(
        "Checkpoint age in bytes",
        "timeseries",
        "bytes",
        (
            Query(level("checkpoint_age_bytes", aggregate="max"), "age"),
            Query(level("checkpoint_age_max_bytes", aggregate="max"), "the most"),
        ),
        "Redo that crash recovery would have to replay, and its maximum.",
        "Near the maximum: writes wait for flushing. The bytes also determine how long crash recovery takes.",
        (board("dirty-page"), run("innoscope toggle show redo_size")),
        lines=("the most",),
    ),
    Panel(
        "Time until redo is full", "timeseries", "s",
        (Query(f"clamp_max({level('redo_full_seconds', aggregate='min')}, 3600)", "at the current rate"),),
        "Time until the redo log is full if nothing is flushed, limited to 1 h.",
        "Below 1 min while the checkpoint age is above 3/4: flushing does not keep up. At a low age, a short "
        "time only shows that the redo log is small.",
        (board("dirty-page"), run("innoscope toggle show redo_size")),
    ),
    Panel(
        "Mutex spins",
        "timeseries",
        "ops",
        (
            Query(rate("spin_rounds"), "rounds"),
            Query(rate("spin_waits"), "spin waits"),
            Query(rate("spin_os_waits"), "ended in a sleep"),
        ),
        "Spinning for InnoDB's mutexes and rw-locks (MySQL 5.5 and 5.6; newer versions do not count it).",
        "Millions of rounds per second: wasted CPU time.",
        (board("contention"), run("innoscope stacks --wait spin"), run("innoscope toggle show spin_rounds")),
    ),
)  # fmt: skip

READ_AHEAD: Final = (
    Panel(
        "Useful read-ahead",
        "timeseries",
        "percentunit",
        (
            Query(
                f"clamp_min(1 - {rate('read_ahead_evicted_pages')} / ({rate('read_ahead_pages')} > 0), 0)",
                "useful, at most",
            ),
        ),
        "Upper bound of the share of the pages read ahead that were used: from MySQL 5.7 on, the server does "
        "not count the pages that a page cleaner evicts unread.",
        "Below 50 %: read-ahead evicts pages that are needed, and causes useless reads.",
        (run("innoscope toggle plan read_ahead off"), read("toggles.md")),
        most=1,
    ),
    Panel(
        "Pages read ahead",
        "timeseries",
        "ops",
        (
            Query(rate("read_ahead_pages", by=["kind"]), "{{kind}}"),
            Query(rate("read_ahead_evicted_pages"), "evicted unread"),
        ),
        "Pages requested by linear and random read-ahead.",
        "*Evicted unread* near the sum of the others.",
        (run("innoscope stacks --wait read_ahead"), run("innoscope toggle plan read_ahead off")),
    ),
    Panel(
        "Read-ahead decisions",
        "timeseries",
        "ops",
        (
            Query(rate("read_ahead_calls", by=["kind"]), "{{kind}} considered"),
            Query(rate("read_ahead_requests", by=["kind"]), "{{kind}} done"),
        ),
        "How often read-ahead was considered, and how often it read at least one page.",
        "Considered very often and never done: it only costs the check.",
        (run("innoscope trace buf_read_ahead_linear"), read("probes.md")),
    ),
)

LOCKS: Final = (
    Panel(
        "Deadlock search",
        "timeseries",
        "percentunit",
        (
            Query(level("deadlock_search_wall_ratio", aggregate="max"), "at the last reading"),
            Query(rate("deadlock_search_seconds"), "on average"),
        ),
        "Share of the time for which a thread searches for deadlocks and holds the lock system's mutex "
        "meanwhile.",
        "Above 10 %: the search is the bottleneck, not the locks. It grows with the square of the queue.",
        (board("contention"), run("innoscope toggle show deadlock_detection")),
    ),
    Panel(
        "History list",
        "timeseries",
        "short",
        (Query(level("history_list_length", aggregate="max"), "undo logs"),),
        "Undo logs that purge has not removed.",
        "Growth for hours: an old transaction is open, or purge does not keep up; queries get slower all the "
        "time.",
        (run("innoscope stacks --queries"), run("innoscope stacks --wait purge"), board("dirty-page")),
    ),
    Panel(
        "Buffer pool misses",
        "timeseries",
        "percentunit",
        (Query(ratio(rate("buffer_pool_reads"), rate("buffer_pool_read_requests")), "missed"),),
        "Logical reads that had to go to storage.",
        "More than 1 % on a server that answers small queries.",
        (run("innoscope stacks --wait page_read"), board("dirty-page")),
    ),
)

LIFECYCLE: Final = (
    Panel(
        "Crash recovery: redo scanned", "timeseries", "bytes",
        (Query(level("recovery_scanned_bytes", aggregate="max"), "scanned up to (LSN)"),),
        "LSN up to which crash recovery has scanned the redo log; 0 if no recovery is running.",
        "No progress while the server does not answer SQL.",
        (run("innoscope profile"), run("innoscope stacks --wait recovery")),
        width=6,
    ),
    Panel(
        "Crash recovery: pages", "timeseries", "ops",
        (Query(rate("recovered_pages"), "pages brought up to date"),
         Query(rate("recovery_scans"), "scans of redo")),
        "Pages that recovery applied redo to, and calls that scan redo. One call scans 4 pages; on MariaDB "
        "10.8 and newer, the whole log.",
        "0 while the server does not answer and recovery is not complete: it is scanning or reading.",
        (run("innoscope profile"), read("profile.md")),
        width=6,
    ),
    Panel(
        "Crash recovery: batches", "timeseries", "short",
        (Query(inside("recovery_apply_seconds"), "share of the time in them"),
         Query(calls("recovery_apply_seconds"), "batches per second")),
        "Apply batches of recovery: how many end, and the share of the time spent in them. They are too "
        "few for quantiles.",
        "All of the time, while no batch ends for minutes: reading pages is slow.",
        (run("innoscope profile --off-cpu"), read("profile.md")),
        width=6,
    ),
    Panel(
        "Shutdown", "timeseries", "short", (Query(increase("shutdown_phases", by=["phase"]), "{{phase}}"),),
        "Phases of a shutdown, as they are entered: begin, flush, free.",
        "*begin* without *flush* for minutes: it waits for transactions or purge. *flush* without *free*: it "
        "writes.",
        (run("innoscope stacks --wait shutdown"), board("dirty-page")),
        width=6,
    ),
)  # fmt: skip
