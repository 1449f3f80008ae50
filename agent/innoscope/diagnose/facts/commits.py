"""Compute the facts about threads that are writing, syncing or waiting for a log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from innoscope.diagnose.answers import ratio, snapshots

if TYPE_CHECKING:
    from innoscope.diagnose.evidence import Evidence, FactFunctions

#: Wait classes of threads that are syncing the redo log or the binary log.
_LOG_SYNCS: Final = frozenset({"fsync_redo", "fsync_binlog"})
#: Wait classes of threads that are writing one of these logs, or waiting until another thread has written it.
#: Only the writer is in a system call on a file.
_LOG_WRITES: Final = frozenset({"redo_write_wait", "group_commit"})


def _commit_wait_share(evidence: Evidence) -> float:
    """Return the share of active client threads that are writing, syncing or waiting for a log."""
    snapshots(evidence)  # raises Unknown without stacks: the process list does not show these waits
    counts = evidence.threads(clients=True)
    return ratio(sum(counts[wait] for wait in _LOG_SYNCS | _LOG_WRITES), evidence.active_clients())


def _log_io_ratio(evidence: Evidence) -> float:
    """Return the share of the snapshots in which a thread is writing or syncing the redo or binary log.

    Threads of all kinds count: in MySQL 8.0, log_flusher syncs the redo log for all clients.
    """
    taken = snapshots(evidence)
    syncing = sum(
        any(count and wait in _LOG_SYNCS for (_, wait), count in snapshot.threads.items())
        for snapshot in taken
    )
    # Threads that are only waiting for the writer have no file. Only one thread at a time writes a log.
    writing = sum(one.count for one in evidence.files if one.wait in _LOG_WRITES)
    return max(syncing, min(writing, len(taken))) / len(taken)


FACTS: Final[FactFunctions] = {
    "commit_wait_share": _commit_wait_share,
    "log_io_ratio": _log_io_ratio,
}
