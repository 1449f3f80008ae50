"""Compute the facts about threads that are running or runnable."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final

from innoscope.diagnose.answers import ratio, snapshots, variable
from innoscope.diagnose.unavailable import Unknown

if TYPE_CHECKING:
    from innoscope.diagnose.evidence import Evidence, FactFunctions


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
    """Return the share of active client threads that are running or runnable."""
    return ratio(_runnable_threads(evidence) * len(evidence.snapshots), evidence.active_clients())


def longest_runner(evidence: Evidence) -> tuple[int | None, float]:
    """Return the client thread that was most often on a CPU, and its share of the snapshots.

    Return ``(None, 0)`` if no client thread was on a CPU. Raise Unknown without snapshots.
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
    """Return how long the longest runner was on a CPU, in seconds.

    This is the time from the first to the last snapshot that shows it on a CPU, but at most the age of its
    statement.
    """
    tid, _ = longest_runner(evidence)
    if tid is None:
        return 0.0
    at = [snapshot.at for snapshot in evidence.snapshots if tid in snapshot.running]
    ages = [one.seconds for one in evidence.statements if one.tid == tid and one.command]
    return min([at[-1] - at[0], *ages])


FACTS: Final[FactFunctions] = {
    "thread_concurrency": partial(variable, name="innodb_thread_concurrency"),
    "runnable_threads": _runnable_threads,
    "runnable_per_cpu": _runnable_per_cpu,
    "runnable_share": _runnable_share,
    "longest_runner_ratio": _longest_runner_ratio,
    "longest_runner_seconds": _longest_runner_seconds,
}
