"""Compute the values that rules use as ``fact.NAME``, from SQL answers, metrics and snapshots."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from innoscope.diagnose import cluster, phases, replication_threads
from innoscope.diagnose.answers import number, rows, snapshots
from innoscope.diagnose.unavailable import Unknown
from innoscope.sampling.snapshot_history import CLIENT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from innoscope.diagnose.evidence import Evidence, Statement

#: User of a replica's own threads in the process list.
_APPLIER: Final = "system user"
#: States of applier threads that are idle, or that wait for the source or for another applier thread.
_AT_REST: Final = re.compile(
    r"^$|^(Waiting for (master|source|the slave|the next|an event|slave|replica|work)|Connecting|Queueing|"
    r"Reconnecting|Checking|Registering|Requesting|Slave has|Replica has|Has read|Reading event|"
    r"wsrep aborter|wsrep applier (idle|committed))",
    re.IGNORECASE,
)
#: State of a commit that waits for a replica: "slave" in MariaDB and before MySQL 8.0.26, then "replica".
_SEMISYNC: Final = re.compile(r"^Waiting for semi-sync ACK from (slave|replica)")


#: Wait classes of threads that are idle or run SLEEP().
AT_REST: Final = frozenset({"idle", "user_sleep", "background_idle"})
#: Functions of MariaDB that write a row of an internal temporary table, and functions of its engine Aria.
_TEMPORARY_ROW: Final = re.compile(r"handler::ha_\w+_tmp_row$")
_ARIA: Final = re.compile(r"(_?ma_|maria_|ha_maria::|create_internal_tmp_table)")
#: Wait classes of client threads without a statement.
_NO_STATEMENT: Final = AT_REST - {"user_sleep"}
#: Wait classes of threads that sync the redo log or the binary log.
_LOG_SYNCS: Final = frozenset({"fsync_redo", "fsync_binlog"})
#: Wait classes of threads that wait for one of these logs, or write it if in a system call on a file.
_LOG_WRITES: Final = frozenset({"redo_write_wait", "group_commit"})


def _oldest_transaction_seconds(evidence: Evidence) -> float:
    return max((number(row, "seconds") for row in rows(evidence, "transactions")), default=0.0)


def _connections_ratio(evidence: Evidence) -> float:
    """Return the peak number of connections as a share of max_connections."""
    have, limit = evidence.gauge("connections"), evidence.gauge("connections_limit")
    if not have or not limit or not limit[-1]:
        raise Unknown("sql", evidence.missing.get("sql"))
    return max(have) / limit[-1]


def _refused(evidence: Evidence) -> float:
    """Return 1 if the server refused our connection because it had too many connections, else 0."""
    missing = evidence.missing.get("sql")
    return float(missing is not None and missing.reason == "refused" and "oo many" in missing.words)


def _read_ahead_wasted_ratio(evidence: Evidence) -> float:
    """Return the share of the pages read ahead that were evicted unread, other than by a page cleaner."""
    read = _grown(evidence, "read_ahead_pages")
    evicted = evidence.change("read_ahead_evicted_pages")
    if evicted is None:
        raise Unknown("memory or sql", evidence.missing.get("memory") or evidence.missing.get("sql"))
    return min(1.0, evicted[0] / read) if read else 0.0


def _read_ahead_share(evidence: Evidence) -> float:
    """Return the pages read ahead as a share of all pages read."""
    return _ratio(_grown(evidence, "read_ahead_pages"), _grown(evidence, "buffer_pool_pages_read"))


def _random_read_ahead_share(evidence: Evidence) -> float:
    """Return the share of read-ahead pages that were read by random read-ahead."""
    return _ratio(_grown(evidence, "read_ahead_pages", "random"), _grown(evidence, "read_ahead_pages"))


def _user_flushed_ratio(evidence: Evidence) -> float:
    """Return the share of written pages that client threads wrote themselves."""
    return _ratio(
        _grown(evidence, "flushed_pages_by_thread", "user"), _grown(evidence, "flushed_pages_by_thread")
    )


def _page_read_seconds(evidence: Evidence) -> float:
    """Return the mean wait for a page read in seconds: waiting threads divided by pages read per second.

    Read-ahead makes the result an underestimate, because no thread waits for pages that are read ahead.
    """
    if not evidence.snapshots:
        raise Unknown("looks", evidence.missing.get("looks"))
    change = evidence.change("buffer_pool_pages_read")
    if change is None:
        raise Unknown("memory or sql", evidence.missing.get("memory") or evidence.missing.get("sql"))
    waiting = evidence.threads(clients=True)["page_read"] / len(evidence.snapshots)
    pages, seconds = change
    return waiting * seconds / pages if pages else 0.0


def _free_page_wait_ratio(evidence: Evidence) -> float:
    """Return the number of waits for a free page, per page read. Each read needs a free page."""
    return _ratio(_grown(evidence, "free_block_waits"), _grown(evidence, "buffer_pool_pages_read"))


def _pool_eaten_ratio(evidence: Evidence) -> float:
    """Return the share of the buffer pool that holds locks or the adaptive hash index instead of data."""
    other, pages = evidence.gauge("buffer_pool_other_pages"), evidence.gauge("buffer_pool_pages")
    if not other or not pages or not pages[-1]:
        raise Unknown("memory or sql", evidence.missing.get("memory") or evidence.missing.get("sql"))
    return max(other) / pages[-1]


def _redo_capacity_seconds(evidence: Evidence) -> float:
    """Return the seconds needed to fill the redo log at the measured rate; infinite if the rate is 0."""
    limit, written = evidence.gauge("checkpoint_age_max_bytes"), evidence.change("redo_written_bytes")
    if not limit or written is None:
        raise Unknown("memory or sql", evidence.missing.get("memory") or evidence.missing.get("sql"))
    return limit[-1] * written[1] / written[0] if written[0] else math.inf


def _history_growth(evidence: Evidence) -> float:
    """Return the growth of the history list length per second."""
    lengths = evidence.gauge("history_list_length")
    if not lengths:
        raise Unknown("memory or sql", evidence.missing.get("memory") or evidence.missing.get("sql"))
    return (lengths[-1] - lengths[0]) / max(evidence.seconds, 1e-3)


def _deadlock_search_load(evidence: Evidence) -> float:
    """Return the seconds that threads spend searching for deadlocks, per second of observation.

    Each row lock wait starts one search. The probe is attached only part of the time, so its totals are
    estimates, but its mean search duration is measured. The result is the mean duration times the wait rate.
    """
    searches, seconds = _last(evidence, "deadlock_searches"), _last(evidence, "deadlock_search_seconds")
    waits = evidence.change("row_lock_waits")
    if waits is None or not searches:
        source = "probes" if "probes" in evidence.missing else "deadlock_search_seconds"
        raise Unknown(source, evidence.missing.get(source))
    return seconds / searches * waits[0] / waits[1]


def _deadlock_search_mean(evidence: Evidence) -> float:
    """Return the mean duration of a deadlock search in seconds."""
    searches = _last(evidence, "deadlock_searches")
    if not searches:
        raise Unknown("deadlock_searches", evidence.missing.get("probes"))
    return _last(evidence, "deadlock_search_seconds") / searches


def _last(evidence: Evidence, key: str) -> float:
    return (evidence.gauge(key) or [0.0])[-1]


def _latch_share(evidence: Evidence) -> float:
    """Return the client threads that wait for a latch, spinning or asleep, as a share of the active ones."""
    spin, asleep, active = _latches(evidence)
    return _ratio(spin + asleep, active)


def _spinning_ratio(evidence: Evidence) -> float:
    """Return the share of spinning threads among the client threads that wait for a latch."""
    spin, asleep, _ = _latches(evidence)
    return _ratio(spin, spin + asleep)


def _latches(evidence: Evidence) -> tuple[int, int, int]:
    snapshots(evidence)  # raises Unknown without stacks: the process list does not show these waits
    counts = evidence.threads(clients=True)
    active = sum(count for wait, count in counts.items() if wait not in AT_REST)
    return counts["spin"], counts["mutex_wait"], active


def _runnable_threads(evidence: Evidence) -> float:
    """Return the mean number of client threads that are running or runnable, including spinning threads."""
    taken = snapshots(evidence)
    counts = evidence.threads(clients=True)
    return (counts["on_cpu"] + counts["spin"]) / len(taken)


def _runnable_per_cpu(evidence: Evidence) -> float:
    if "cpus" not in evidence.host:
        raise Unknown("host", None)
    return _runnable_threads(evidence) / evidence.host["cpus"]


def _runnable_share(evidence: Evidence) -> float:
    """Return the running and runnable client threads as a share of the active client threads."""
    counts = evidence.threads(clients=True)
    active = sum(count for wait, count in counts.items() if wait not in AT_REST)
    return _ratio(_runnable_threads(evidence) * len(evidence.snapshots), active)


def _commit_wait_share(evidence: Evidence) -> float:
    """Return the client threads that write, sync or wait for a log, as a share of the active ones."""
    snapshots(evidence)  # raises Unknown without stacks: the process list does not show these waits
    counts = evidence.threads(clients=True)
    active = sum(count for wait, count in counts.items() if wait not in AT_REST)
    return _ratio(sum(counts[wait] for wait in _LOG_SYNCS | _LOG_WRITES), active)


def _log_io_ratio(evidence: Evidence) -> float:
    """Return the share of the snapshots in which some thread writes or syncs the redo log or binary log.

    Threads of all kinds count: in MySQL 8.0, log_flusher syncs the redo log for all clients.
    """
    taken = snapshots(evidence)
    syncing = sum(
        any(count and wait in _LOG_SYNCS for (_, wait), count in snapshot.threads.items())
        for snapshot in taken
    )
    # Threads that only wait for the writer have no file. One thread at a time writes a log.
    writing = sum(one.count for one in evidence.files if one.wait in _LOG_WRITES)
    return max(syncing, min(writing, len(taken))) / len(taken)


def _dns_threads(evidence: Evidence) -> float:
    """Return the mean number of new connections whose client's name is being looked up in DNS."""
    taken = snapshots(evidence)
    found = sum(
        seen.count for seen in evidence.seen if seen.wait == "login" and "ip_to_hostname" in seen.functions
    )
    return found / len(taken)


def _snapshots_with(wait: str, *, clients: bool) -> Callable[[Evidence], float]:
    """Return a fact: the share of the snapshots in which such a thread is in the wait class.

    The fact is unknown if there is no such snapshot.
    """

    def fact(evidence: Evidence) -> float:
        found = sum(
            any(
                count and seen == wait and (kind == CLIENT) == clients
                for (kind, seen), count in one.threads.items()
            )
            for one in evidence.snapshots
        )
        if not found:
            raise Unknown("looks", evidence.missing.get("looks"))
        return found / len(evidence.snapshots)

    return fact


def _thread_pool_busy_threads(evidence: Evidence) -> float:
    """Return the mean number of client threads with a statement, including those in SLEEP()."""
    taken = snapshots(evidence)
    counts = evidence.threads(clients=True)
    return sum(count for wait, count in counts.items() if wait not in _NO_STATEMENT) / len(taken)


def _thread_pool_busy_ratio(evidence: Evidence) -> float:
    threads = evidence.gauge("thread_pool_threads")
    return _ratio(_thread_pool_busy_threads(evidence), max(threads, default=0.0))


def _thread_pool_queued(evidence: Evidence) -> float:
    """Return the number of connections whose statement or login waits for a thread of the thread pool."""
    return sum(number(row, "queued") for row in rows(evidence, "thread_pool"))


def _sql_unanswered(evidence: Evidence) -> float:
    """Return 1 if the server accepted our connection but did not answer, else 0."""
    missing = evidence.missing.get("sql")
    return float(missing is not None and missing.reason == "timeout")


def _blind(evidence: Evidence) -> float:
    """Return 1 if snapshots were possible but none completed within the observation time, else 0."""
    missing = evidence.missing.get("looks")
    return float(not evidence.snapshots and (missing is None or missing.reason == "timeout"))


def _observed_seconds(evidence: Evidence) -> float:
    return evidence.seconds


def _variable(evidence: Evidence, name: str) -> float:
    """Return the value of a system variable. Raises Unknown if the server does not have it."""
    for row in rows(evidence, "variables"):
        if row["name"] == name:
            return number(row, "value")
    raise Unknown("sql", None)


def _thread_concurrency(evidence: Evidence) -> float:
    return _variable(evidence, "innodb_thread_concurrency")


def _thread_pool_limit(evidence: Evidence) -> float:
    return _variable(evidence, "thread_pool_max_threads")


def _table_cache(evidence: Evidence) -> float:
    return _variable(evidence, "table_open_cache")


def _disk_table_threads(evidence: Evidence) -> float:
    """Return the mean number of client threads whose stack proves that their temporary table is on disk.

    MariaDB writes rows of tables in memory and on disk with the same functions of the SQL layer. Those of the
    engine Aria have no names in stripped builds.
    """
    taken = snapshots(evidence)
    proven = sum(
        seen.count
        for seen in evidence.seen
        if (seen.kind, seen.wait) == (CLIENT, "temporary_table")
        and (
            not any(_TEMPORARY_ROW.match(function) for function in seen.functions)
            or any(_ARIA.match(function) for function in seen.functions)
        )
    )
    return proven / len(taken)


def _temporary_table_limit(evidence: Evidence) -> float:
    """Return the maximum size of an internal temporary table in memory, in bytes.

    max_heap_table_size does not limit tables of the engine TempTable (MySQL 8.0), but has the same default.
    """
    return min(_variable(evidence, "tmp_table_size"), _variable(evidence, "max_heap_table_size"))


def _statement_rate(evidence: Evidence) -> float:
    """Return the number of statements per second, without Innoscope's own statements."""
    grown = evidence.change("statements")
    if grown is None:
        raise Unknown("sql", evidence.missing.get("sql"))
    return grown[0] / grown[1]


def _opens_per_statement(evidence: Evidence) -> float:
    """Return the number of table opens that missed the table cache, per statement."""
    return _ratio(_grown(evidence, "table_opens"), _grown(evidence, "statements"))


def longest_runner(evidence: Evidence) -> tuple[int | None, float]:
    """Return the client thread that was most often on a CPU, and the share of snapshots that show it there.

    Returns ``(None, 0)`` if no client thread was on a CPU. Raises Unknown without snapshots.
    """
    taken = snapshots(evidence)
    found = Counter(tid for snapshot in taken for tid in snapshot.running)
    if not found:
        return None, 0.0
    tid, times = found.most_common(1)[0]
    return tid, times / len(taken)


def _longest_runner_ratio(evidence: Evidence) -> float:
    return longest_runner(evidence)[1]


def _longest_runner_seconds(evidence: Evidence) -> float:
    """Return the time for which the longest runner was on a CPU, in seconds.

    This is the time from the first to the last snapshot that shows it on a CPU,
    limited to the age of its statement.
    """
    tid, _ = longest_runner(evidence)
    if tid is None:
        return 0.0
    at = [snapshot.at for snapshot in evidence.snapshots if tid in snapshot.running]
    ages = [one.seconds for one in evidence.statements if one.tid == tid and one.command]
    return min([at[-1] - at[0], *ages])


def appliers(evidence: Evidence) -> tuple[Statement, ...]:
    """Return the statements of a replica's applier threads, excluding idle threads (_AT_REST)."""
    return tuple(
        one for one in evidence.statements if one.user == _APPLIER and not _AT_REST.search(one.state)
    )


def _applier_behind_seconds(evidence: Evidence) -> float:
    """Return the seconds by which the replica is behind its source, in addition to its configured delay."""
    try:
        replicas = rows(evidence, "replication")
    except Unknown:  # no privilege; MySQL's process list shows the age of the event being applied
        rows(evidence, "processes")
        return max((float(one.seconds) for one in appliers(evidence)), default=0.0)
    return max((number(row, "seconds") - number(row, "delay") for row in replicas), default=0.0)


def _semisync_wait_seconds(evidence: Evidence) -> float:
    """Return the longest time for which a commit has waited for a replica's acknowledgement, in seconds."""
    rows(evidence, "processes")
    return max((float(one.seconds) for one in evidence.statements if _SEMISYNC.match(one.state)), default=0.0)


def _semisync_timeout_seconds(evidence: Evidence) -> float:
    try:
        return _variable(evidence, "rpl_semi_sync_source_timeout") / 1000
    except Unknown:
        return _variable(evidence, "rpl_semi_sync_master_timeout") / 1000


def _connected_replicas(evidence: Evidence) -> float:
    """Return the number of replicas that read this server's binary log, with or without acknowledging it."""
    rows(evidence, "processes")
    return float(sum(one.command.startswith("Binlog Dump") for one in evidence.statements))


def _recovery_rate(evidence: Evidence) -> float:
    """Return the rate at which crash recovery scans the redo log, in bytes per second."""
    reached = [
        (reading.at, float(value))
        for reading in evidence.readings
        if isinstance(value := reading.values.get("recovery_scanned_bytes"), int | float) and value
    ]
    if len(reached) < 2 or reached[-1][1] <= reached[0][1]:
        raise Unknown("memory", evidence.missing.get("memory"))
    return (reached[-1][1] - reached[0][1]) / (reached[-1][0] - reached[0][0])


def _recovery_full_seconds(evidence: Evidence) -> float:
    """Return the seconds needed to scan a full redo log at the current rate.

    This is an upper limit for the scan of the current recovery.
    """
    limit = evidence.gauge("checkpoint_age_max_bytes")
    if not limit or not limit[-1]:
        raise Unknown("memory", evidence.missing.get("memory"))
    return limit[-1] / _recovery_rate(evidence)


def _toggles_in_force(evidence: Evidence) -> float:
    return float(len(evidence.labels("toggle_in_force")))


def _grown(evidence: Evidence, metric: str, label: str | None = None) -> float:
    keys = (
        [f"{metric}.{label}"] if label else [metric, *(f"{metric}.{one}" for one in evidence.labels(metric))]
    )
    grown = [change[0] for key in keys if (change := evidence.change(key)) is not None]
    if not grown:
        source = next((name for name in ("probes", "memory", "sql") if name in evidence.missing), None)
        raise Unknown(source or metric, evidence.missing.get(source or ""))
    return sum(grown)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


#: All metrics that facts use, so that callers need not collect others.
METRICS: Final = cluster.METRICS | frozenset({
    "buffer_pool_other_pages", "buffer_pool_pages", "buffer_pool_pages_read", "checkpoint_age_max_bytes",
    "connections", "connections_limit", "deadlock_search_seconds", "deadlock_searches",
    "flushed_pages_by_thread", "free_block_waits", "history_list_length", "read_ahead_evicted_pages",
    "read_ahead_pages", "recovery_scanned_bytes", "redo_written_bytes", "row_lock_waits", "statements",
    "table_opens", "thread_pool_threads", "toggle_in_force",
})  # fmt: skip

FACTS: Final[Mapping[str, Callable[[Evidence], float]]] = {
    "oldest_transaction_seconds": _oldest_transaction_seconds,
    "connections_ratio": _connections_ratio,
    "refused": _refused,
    "read_ahead_wasted_ratio": _read_ahead_wasted_ratio,
    "read_ahead_share": _read_ahead_share,
    "random_read_ahead_share": _random_read_ahead_share,
    "user_flushed_ratio": _user_flushed_ratio,
    "page_read_seconds": _page_read_seconds,
    "free_page_wait_ratio": _free_page_wait_ratio,
    "pool_eaten_ratio": _pool_eaten_ratio,
    "latch_share": _latch_share,
    "spinning_ratio": _spinning_ratio,
    "table_cache": _table_cache,
    "disk_table_threads": _disk_table_threads,
    "temporary_table_limit": _temporary_table_limit,
    "thread_concurrency": _thread_concurrency,
    "runnable_threads": _runnable_threads,
    "runnable_per_cpu": _runnable_per_cpu,
    "runnable_share": _runnable_share,
    "commit_wait_share": _commit_wait_share,
    "log_io_ratio": _log_io_ratio,
    "dns_threads": _dns_threads,
    "pool_scan_clients": _snapshots_with("pool_scan", clients=True),
    "pool_scan_background": _snapshots_with("pool_scan", clients=False),
    "thread_pool_limit": _thread_pool_limit,
    "thread_pool_busy_threads": _thread_pool_busy_threads,
    "thread_pool_busy_ratio": _thread_pool_busy_ratio,
    "thread_pool_queued": _thread_pool_queued,
    "sql_unanswered": _sql_unanswered,
    "blind": _blind,
    "observed_seconds": _observed_seconds,
    "opens_per_statement": _opens_per_statement,
    "statement_rate": _statement_rate,
    "deadlock_search_load": _deadlock_search_load,
    "deadlock_search_mean": _deadlock_search_mean,
    "redo_capacity_seconds": _redo_capacity_seconds,
    "history_growth": _history_growth,
    "longest_runner_ratio": _longest_runner_ratio,
    "longest_runner_seconds": _longest_runner_seconds,
    "recovery_rate": _recovery_rate,
    "recovery_full_seconds": _recovery_full_seconds,
    **phases.FACTS,
    **cluster.FACTS,
    "applier_behind_seconds": _applier_behind_seconds,
    "semisync_wait_seconds": _semisync_wait_seconds,
    "semisync_timeout_seconds": _semisync_timeout_seconds,
    "connected_replicas": _connected_replicas,
    "replication_failed": replication_threads.failed,
    "replication_off": replication_threads.switched_off,
    "toggles_in_force": _toggles_in_force,
}
