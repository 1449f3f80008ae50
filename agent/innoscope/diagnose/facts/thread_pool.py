"""Compute the facts about MariaDB's thread pool."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from innoscope.diagnose.answers import number, ratio, rows, snapshots, variable
from innoscope.diagnose.evidence import AT_REST

if TYPE_CHECKING:
    from innoscope.diagnose.evidence import Evidence, FactFunctions

#: Wait classes of client threads without a statement.
_NO_STATEMENT: Final = AT_REST - {"user_sleep"}


def _thread_pool_busy_threads(evidence: Evidence) -> float:
    """Return the mean number of client threads with a statement, including those in SLEEP()."""
    taken = snapshots(evidence)
    counts = evidence.threads(clients=True)
    return sum(count for wait, count in counts.items() if wait not in _NO_STATEMENT) / len(taken)


def _thread_pool_busy_ratio(evidence: Evidence) -> float:
    threads = evidence.gauge("thread_pool_threads")
    return ratio(_thread_pool_busy_threads(evidence), max(threads, default=0.0))


def _thread_pool_queued(evidence: Evidence) -> float:
    """Return the number of connections whose statement or login is queued for a pool thread."""
    return sum(number(row, "queued") for row in rows(evidence, "thread_pool"))


METRICS: Final = frozenset({"thread_pool_threads"})

FACTS: Final[FactFunctions] = {
    "thread_pool_limit": partial(variable, name="thread_pool_max_threads"),
    "thread_pool_busy_threads": _thread_pool_busy_threads,
    "thread_pool_busy_ratio": _thread_pool_busy_ratio,
    "thread_pool_queued": _thread_pool_queued,
}
