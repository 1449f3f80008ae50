"""Compute the facts about page reads, read-ahead, flushing and the pages of the buffer pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from innoscope.diagnose.answers import grown, no_metric, ratio
from innoscope.diagnose.unavailable import Unknown
from innoscope.sampling.snapshot_history import CLIENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from innoscope.diagnose.evidence import Evidence, FactFunctions


def _read_ahead_wasted_ratio(evidence: Evidence) -> float:
    """Return the share of read-ahead pages evicted before use, not counting evictions by the page cleaner."""
    read = grown(evidence, "read_ahead_pages")
    evicted = evidence.change("read_ahead_evicted_pages")
    if evicted is None:
        raise no_metric(evidence)
    return min(1.0, evicted[0] / read) if read else 0.0


def _read_ahead_share(evidence: Evidence) -> float:
    """Return the pages read ahead as a share of all pages read."""
    return ratio(grown(evidence, "read_ahead_pages"), grown(evidence, "buffer_pool_pages_read"))


def _random_read_ahead_share(evidence: Evidence) -> float:
    """Return the share of read-ahead pages that were read by random read-ahead."""
    return ratio(grown(evidence, "read_ahead_pages", "random"), grown(evidence, "read_ahead_pages"))


def _user_flushed_ratio(evidence: Evidence) -> float:
    """Return the share of page writes that client threads performed themselves."""
    return ratio(
        grown(evidence, "flushed_pages_by_thread", "user"), grown(evidence, "flushed_pages_by_thread")
    )


def _page_read_seconds(evidence: Evidence) -> float:
    """Return the mean wait for a page read in seconds: waiting threads divided by pages read per second.

    With read-ahead, the result is too low, because no thread waits for pages that are read ahead.
    """
    if not evidence.snapshots:
        raise Unknown("looks", evidence.missing.get("looks"))
    change = evidence.change("buffer_pool_pages_read")
    if change is None:
        raise no_metric(evidence)
    waiting = evidence.threads(clients=True)["page_read"] / len(evidence.snapshots)
    pages, seconds = change
    return waiting * seconds / pages if pages else 0.0


def _free_page_wait_ratio(evidence: Evidence) -> float:
    """Return the number of waits for a free page per page read. Each read needs a free page."""
    return ratio(grown(evidence, "free_block_waits"), grown(evidence, "buffer_pool_pages_read"))


def _pool_eaten_ratio(evidence: Evidence) -> float:
    """Return the share of the buffer pool that holds locks or the adaptive hash index instead of data."""
    other, pages = evidence.gauge("buffer_pool_other_pages"), evidence.gauge("buffer_pool_pages")
    if not other or not pages or not pages[-1]:
        raise no_metric(evidence)
    return max(other) / pages[-1]


def _snapshots_with(wait: str, *, clients: bool) -> Callable[[Evidence], float]:
    """Return a function that computes the share of the snapshots that show a thread in the wait class.

    With ``clients``, only client threads count, otherwise only the server's own threads. The function raises
    Unknown if there is no such snapshot.
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


METRICS: Final = frozenset(
    {
        "buffer_pool_other_pages",
        "buffer_pool_pages",
        "buffer_pool_pages_read",
        "flushed_pages_by_thread",
        "free_block_waits",
        "read_ahead_evicted_pages",
        "read_ahead_pages",
    }
)

FACTS: Final[FactFunctions] = {
    "read_ahead_wasted_ratio": _read_ahead_wasted_ratio,
    "read_ahead_share": _read_ahead_share,
    "random_read_ahead_share": _random_read_ahead_share,
    "user_flushed_ratio": _user_flushed_ratio,
    "page_read_seconds": _page_read_seconds,
    "free_page_wait_ratio": _free_page_wait_ratio,
    "pool_eaten_ratio": _pool_eaten_ratio,
    "pool_scan_clients": _snapshots_with("pool_scan", clients=True),
    "pool_scan_background": _snapshots_with("pool_scan", clients=False),
}
