"""Define the correct wait classes of each load, and measure how many threads have them.

``PYTHONPATH=tests python -m live.wait_truth`` prints the shares by server and load.

The expected classes do not come from stacks. The server reports which threads belong to the load, and the
load determines what these threads can wait for.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from clusters import CLUSTERS, server_of
from live.observe import PLANS, QUIET, RECORDING, Observatory
from servers import ADDED, NAMES, TRIED
from workloads import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from live.observe import Observation

SUBJECTS: Final = (*NAMES, *ADDED, *TRIED, *RECORDING, *CLUSTERS)
LOADS: Final = tuple(load for load in PLANS if load != QUIET)

#: Wait classes that a load causes in addition to those that it declares.
_ALSO: Final = {
    # each statement opens its table while it holds a mutex; the undo log's file grows
    "update_storm": {"opening_tables", "fsync_data", "page_write"},
    "cpu": {"opening_tables", "table_lock", "allocator"},  # the threads share the arenas of malloc
    # the data file grows; before 5.6, the thread that inserts many rows updates the statistics (row0mysql.c)
    "fsync": {"fsync_data", "page_write", "statistics"},
    # the rows were just written, so a thread that needs a free page must first write a dirty page
    "table_scan": {"doublewrite", "page_write", "fsync_data", "change_buffer_merge"},
}
#: Wait classes of commits on a node of a cluster. Members of a group have a binary log.
_OF_CLUSTERS: Final = {
    "galera": {"galera_wait"},
    "group-replication": {"group_replication_wait", "fsync_binlog", "group_commit"},
}
#: Classes that are never correct, because clients read each reply immediately.
_NEVER: Final = {"network_send"}
#: The expected class on servers that differ from the others. From 8.0.22 to 8.3, by default only dedicated
#: threads write and flush the redo log (innodb_log_writer_threads), and all other threads wait for them.
#: On a cluster's node, most commits wait for the cluster.
_INSTEAD: Final = {
    ("mysql-8.0.31", "fsync"): "redo_write_wait",
    ("galera", "fsync"): "galera_wait",
    ("group-replication", "fsync"): "group_replication_wait",
}
#: Loads that a server or cluster cannot have. Galera's DDL does not wait for open transactions, but aborts
#: them. MariaDB 11.8 writes its redo log through a memory mapping, without sync calls: it treats the file
#: system of /dev/shm as persistent memory, and in the chroot of the tests its data is on the same one.
_IMPOSSIBLE: Final = {("galera", "metadata_lock"), ("mariadb-11.8", "fsync")}


def exists(subject: str, load: str) -> bool:
    """Return whether the load can occur on the server or cluster ``subject``."""
    return (subject, load) not in _IMPOSSIBLE


def expected(subject: str, load: str) -> str:
    """Return the class that at least one thread of the load must have."""
    return _INSTEAD.get((subject, load), WORKLOADS[load].expected)


def right(subject: str, load: str) -> set[str]:
    """Return all classes that are correct for threads of the load."""
    declared = {expected(subject, load), *WORKLOADS[load].also, *_ALSO.get(load, ())}
    commits = {"update_storm", "fsync"}
    return (declared | (_OF_CLUSTERS.get(subject, set()) if load in commits else set())) - _NEVER


@dataclass(frozen=True, slots=True)
class Tally:
    """The number of classified threads, and of those with a correct class."""

    total: int
    good: int

    @property
    def share(self) -> float:
        """Return the share of the threads that have a correct class."""
        return self.good / self.total


def tally(seen: Observation, subject: str, load: str) -> Tally:
    """Count the threads of the load over all snapshots."""
    classes = right(subject, load)
    return Tally(seen.waits.total(), sum(count for wait, count in seen.waits.items() if wait in classes))


def _title(subject: str) -> str:
    server = RECORDING.get(subject) or server_of(subject)
    return subject if subject == server else f"{subject} ({server})"


def _rows(subjects: tuple[str, ...]) -> Iterator[str]:
    observatory = Observatory()
    yield f"| server | {' | '.join(LOADS)} |"
    yield f"|---|{'---|' * len(LOADS)}"
    for subject in subjects:
        cells = []
        for load in LOADS:
            if not exists(subject, load):
                cells.append("–")
                continue
            seen = observatory.observe(subject, load)
            counted = tally(seen, subject, load)
            cells.append(f"{100 * counted.share:.2f}")
            wrong = set(seen.waits) - right(subject, load)
            print(subject, load, dict(seen.waits), seen.shown(wrong), sep="\n", file=sys.stderr, flush=True)
        yield f"| {_title(subject)} | {' | '.join(cells)} |"
    observatory.close()


if __name__ == "__main__":
    for line in _rows(tuple(sys.argv[1:]) or SUBJECTS):
        print(line, flush=True)
