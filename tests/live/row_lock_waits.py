"""Wait for threads that wait for row locks, and measure how long they have waited."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from waiting import until

if TYPE_CHECKING:
    from safety.agenting import Scrape
    from workloads.base import Workload

#: INNODB_TRX is refreshed only if it has not been read for 0.1 s.
_REFRESHED_S: Final = 0.15
#: The number of transactions that are waiting for a lock.
_WAITING: Final = "SELECT COUNT(*) FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'"


def until_waiting(workload: Workload, count: int) -> None:
    """Wait until ``count`` transactions of the workload's server are waiting for a lock."""
    until(lambda: workload.sql(_WAITING) == [(count,)], every_s=_REFRESHED_S)


def waited_s(scrape: Scrape) -> float:
    """Return the seconds for which threads have waited for row locks."""
    return scrape.value("thread_seconds_total", wait="row_lock") or 0.0
