"""The life of a dirty page: from the change to the data file, and what waits on the way."""

from __future__ import annotations

from typing import Final

from generate.model import GREEN, ORANGE, RED, YELLOW, Dashboard, Panel, Query, Row, board, read, run
from generate.queries import calls, inside, level, quantile, rate, ratio, series

#: The stations of a page, each a histogram: (metric, matchers, name).
_PATHS: Final = (
    ("flush_batch_seconds", ('type="list"',), "flush list batch"),
    ("flush_batch_seconds", ('type="lru"',), "LRU batch"),
    ("single_page_flush_seconds", (), "single page flush"),
    ("flush_wait_seconds", (), "wait for a batch"),
    ("doublewrite_batch_seconds", (), "doublewrite batch"),
    ("redo_write_seconds", (), "redo write"),
    ("redo_stall_seconds", (), "redo space"),
    ("free_block_wait_seconds", (), "free page"),
)

_BORN: Final = (
    Panel(
        "Dirty pages",
        "timeseries",
        "short",
        (
            Query(level("buffer_pool_dirty_pages"), "dirty"),
            Query(
                f"{level('buffer_pool_dirty_limit_ratio', how='max')} * "
                f"({level('buffer_pool_data_pages')} + {level('buffer_pool_free_pages')})",
                "limit",
            ),
        ),
        "Pages that were changed and not yet written, and how many there should be at most.",
        "At the limit, or above: writers and flushing are in a race, and flushing loses.",
        (board("server"), run("innoscope toggle show dirty_page_limit")),
        lines=("limit",),
    ),
    Panel(
        "Redo",
        "timeseries",
        "Bps",
        (
            Query(rate("redo_written_bytes"), "made"),
            Query(rate("redo_flushed_bytes"), "on disk"),
            Query(rate("redo_checkpoint_bytes"), "freed by checkpoints"),
        ),
        "Redo made by changes, made durable, and freed again as the pages are flushed.",
        "*made* above *freed* for long: the redo space fills, and a stall is near.",
        (board("server"), run("innoscope toggle show redo_size")),
    ),
    Panel(
        "Log buffer waits",
        "timeseries",
        "ops",
        (Query(rate("redo_buffer_waits"), "waits"),),
        "Waits for space in the log buffer (in memory, not the files).",
        "More than 0 all the time: `innodb_log_buffer_size` is too small for the transactions.",
        (run("innoscope stacks --wait redo_write_wait"), read("waits.md")),
    ),
)

_FLUSHED: Final = (
    Panel(
        "Pages flushed, by list", "timeseries", "ops",
        (Query(rate("flushed_pages", by=["type"]), "{{type}}"),),
        "Pages written from the flush list (for the checkpoint and the dirty limit), from the LRU's end (for "
        "free "
        "pages), or one by one.",
        "*single_page*: threads with queries flush for themselves. A jump of *list* to all that the device "
        "can do: a "
        "flushing storm.",
        (board("server"), run("innoscope stacks --wait free_page_wait"),
         run("innoscope toggle show io_capacity")),
        width=6, stacked=True,
    ),
    Panel(
        "Pages flushed, by whom", "timeseries", "ops",
        (Query(rate("flushed_pages_by_thread", by=["thread"]), "{{thread}}"),),
        "Which kind of thread wrote them.",
        "*user*: flushing in the foreground; each of these pages is a query that waited. *master* alone, on "
        "servers "
        "that have a page cleaner: it does not keep up.",
        (run("innoscope stacks --wait page_write"), run("innoscope trace page_flush --callers")),
        width=6, stacked=True,
    ),
    Panel(
        "Flush batches", "timeseries", "ops",
        (
            Query(rate("flush_batches", by=["type"]), "{{type}}"),
            Query(rate("flush_batches_refused", by=["type"]), "{{type}} refused"),
        ),
        "Batches that ran, and those not begun because one of the kind was under way.",
        "*refused* beside waits for a batch: many threads want to flush at once.",
        (run("innoscope stacks --wait flush_wait"), read("probes.md")),
        width=6,
    ),
    Panel(
        "Pages asked of a batch", "timeseries", "short",
        (
            Query(ratio(rate("flush_batch_asked_pages", by=["type"]),
                        f"({rate('flush_batches', by=['type'])} > 0)"), "{{type}}"),
        ),
        "How many pages a batch is asked for, on average.",
        "Thousands, where `innodb_io_capacity` is hundreds: adaptive flushing is behind, or a checkpoint is "
        "forced.",
        (run("innoscope toggle show io_capacity"), board("server")),
        width=6,
    ),
)  # fmt: skip

_WRITTEN: Final = (
    Panel(
        "Doublewrite",
        "timeseries",
        "ops",
        (Query(rate("doublewrite_pages"), "pages"), Query(calls("doublewrite_batch_seconds"), "batches")),
        "Pages that go through the doublewrite buffer, and batches of them.",
        "Nearly as many batches as pages: each page is synced alone.",
        (run("innoscope stacks --wait doublewrite"), read("waits.md")),
        width=6,
    ),
    Panel(
        "fsyncs",
        "timeseries",
        "ops",
        (Query(calls("fsync_seconds", by=["file"]), "{{file}}"),),
        "fsync and fdatasync, by kind of file.",
        "*redo* as often as there are commits: nobody commits together with others.",
        (run("innoscope stacks --wait fsync_redo"), read("waits.md")),
        width=6,
    ),
    Panel(
        "fsync latency, by file",
        "timeseries",
        "s",
        (Query(quantile(0.99, "fsync_seconds", by=["file"]), "{{file}}"),),
        "99 of 100 fsyncs were quicker than this.",
        "Above 10 ms for *redo*: every commit feels it. Above 100 ms for *data*: flushing is as slow.",
        (board("server"), run("innoscope profile --off-cpu")),
        width=6,
    ),
    Panel(
        "Read latency, by file",
        "timeseries",
        "s",
        (Query(quantile(0.99, "read_seconds", by=["file"]), "{{file}}"),),
        "99 of 100 reads were quicker than this. Empty until the sensor runs with the probe family `read`, "
        "which is "
        "off by default.",
        "Above 10 ms: reads queue behind writes.",
        (run("innoscope stacks --wait page_read"), read("probes.md")),
        width=6,
    ),
)

_CHECKPOINTS: Final = (
    Panel(
        "Checkpoint zone", "timeseries", "percentunit",
        (
            Query(f"avg by (zone) (avg_over_time({series('checkpoint_zone')}[$__rate_interval]))",
                  "{{zone}}"),
        ),
        "Share of the time in each zone of the checkpoint age: calm to 50 %, steady to 75 %, aggressive to "
        "87.5 %, "
        "storm above.",
        "*storm*: writers wait until pages are flushed.",
        (board("server"), run("innoscope toggle show redo_size")),
        stacked=True, most=1,
        colors=(("calm", GREEN), ("steady", YELLOW), ("aggressive", ORANGE), ("storm", RED)),
    ),
    Panel(
        "Checkpoints", "timeseries", "ops", (Query(rate("checkpoints", by=["kind"]), "{{kind}}"),),
        "Checkpoints written a second; forced ones somebody waits for.",
        "*forced* at all, under a steady load.",
        (board("server"), run("innoscope stacks --wait redo_space")),
    ),
    Panel(
        "Threads in a stall for redo space", "timeseries", "short",
        (Query(inside("redo_stall_seconds"), "by probe"),
         Query(rate("thread_seconds", 'wait="redo_space"'), "by stacks")),
        "Threads that wait for redo space, on average.",
        "Above 1: writes stand still. As many as there are connections: nothing is written at all.",
        (board("server"), run("innoscope stacks --wait redo_space")),
    ),
)  # fmt: skip

_FREE: Final = (
    Panel(
        "Waits for a free page",
        "timeseries",
        "ops",
        (
            Query(rate("free_block_waits"), "waits"),
            Query(calls("single_page_flush_seconds"), "flushed one by themselves"),
        ),
        "Threads that found no free page and had to wait, or to flush one.",
        "More than 0: the LRU is not flushed ahead of the readers.",
        (run("innoscope stacks --wait free_page_wait"), run("innoscope trace free_block --callers")),
    ),
    Panel(
        "Time to get a free page",
        "timeseries",
        "s",
        (
            Query(quantile(0.5, "free_block_wait_seconds"), "median"),
            Query(quantile(0.99, "free_block_wait_seconds"), "99 of 100"),
        ),
        "All requests for a free page, those that found one at once included.",
        "The 99th percentile above 1 ms: stalls.",
        (board("server"), run("innoscope trace free_block --callers")),
    ),
    Panel(
        "Is the pool running out?",
        "timeseries",
        "ops",
        (Query(rate("buffer_pool_running_out", by=["result"]), "{{result}}"),),
        "Checks whether locks and the hash index use up the pool.",
        '*yes*: that statement fails ("The total number of locks exceeds the lock table size").',
        (run("innoscope trace running_out --callers"), read("trace.md")),
    ),
)

_LATENCY: Final = (
    Panel(
        "Latency by path, 99 of 100",
        "timeseries",
        "s",
        tuple(Query(quantile(0.99, metric, *matchers), name) for metric, matchers, name in _PATHS),
        "How long each station took, at its 99th percentile.",
        "Batches of seconds; *redo write* far above the fsync of the redo log: a queue before the log.",
        (board("contention"), run("innoscope profile --off-cpu")),
        width=12,
        height=9,
    ),
    Panel(
        "Threads on each path",
        "timeseries",
        "short",
        tuple(Query(inside(metric, *matchers), name) for metric, matchers, name in _PATHS),
        "How many threads are at each station, on average: where the waiting is.",
        "The largest band is the one to mend. It is not *free page* or *redo space* on a healthy server.",
        (board("server"), run("innoscope stacks --by wait")),
        width=12,
        height=9,
        stacked=True,
    ),
)

_BACKGROUND: Final = (
    Panel(
        "Change buffer merges",
        "timeseries",
        "ops",
        (Query(rate("change_buffer_merges"), "merges"),),
        "Merges of the change buffer begun (it is gone in MariaDB 11).",
        "None for long while inserts go on, and then storms of reads.",
        (run("innoscope stacks --wait change_buffer_merge"), read("waits.md")),
        width=6,
    ),
    Panel(
        "Change buffer merge latency",
        "timeseries",
        "s",
        (Query(quantile(0.99, "change_buffer_merge_seconds"), "99 of 100"),),
        "Duration of merges.",
        "Seconds: each reads many pages.",
        (run("innoscope stacks --wait change_buffer_merge"), board("server")),
        width=6,
    ),
    Panel(
        "Master thread",
        "timeseries",
        "ops",
        (Query(rate("master_ticks"), "rounds"),),
        "Rounds of the master thread: one a second, ten on old servers with work to do.",
        "None: it hangs, or flushes for seconds in one round.",
        (run("innoscope stacks"), read("waits.md")),
        width=6,
    ),
    Panel(
        "Purge",
        "timeseries",
        "short",
        (
            Query(rate("purge_batches"), "batches a second"),
            Query(inside("purge_batch_seconds"), "threads in it"),
        ),
        "Purge batches, and how many threads are in one on average.",
        "One thread in it all the time and a history list that grows: purge cannot do more.",
        (board("server"), run("innoscope stacks --wait purge")),
        width=6,
    ),
)

DASHBOARD: Final = Dashboard(
    "innoscope-dirty-page",
    "Innoscope / Life of a dirty page",
    "From the change in memory to the data file: redo, dirty pages, flush lists, who flushes, doublewrite, "
    "fsync, "
    "checkpoints; and the latency of each station.",
    (
        Row("A page gets dirty", _BORN),
        Row("It is flushed", _FLUSHED),
        Row("Doublewrite, files", _WRITTEN),
        Row("Checkpoints", _CHECKPOINTS),
        Row("Free pages", _FREE),
        Row("Latency by path", _LATENCY),
        Row("In the background", _BACKGROUND),
    ),
)
