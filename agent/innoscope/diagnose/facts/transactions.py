"""Compute the facts about old transactions, purge and deadlock searches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from innoscope.diagnose.answers import no_metric, number, rows
from innoscope.diagnose.unavailable import Unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from innoscope.diagnose.evidence import Evidence, FactFunctions

#: At these isolation levels, a transaction closes its read view at the end of each statement
#: (ha_innobase::external_lock in ha_innodb.cc of 5.6 to 9.x).
_VIEW_PER_STATEMENT: Final = ("READ UNCOMMITTED", "READ COMMITTED")


def _oldest_transaction_seconds(evidence: Evidence) -> float:
    return max((number(row, "seconds") for row in rows(evidence, "transactions")), default=0.0)


def oldest_view(evidence: Evidence) -> tuple[float, Mapping[str, str]] | None:
    """Return the age in seconds of the oldest read view, and the transaction that may have this view.

    Return None if no transaction can have a read view. Purge cannot remove row versions that a view may
    still need.
    """
    views = ((_view_seconds(row, evidence), row) for row in rows(evidence, "transactions"))
    known = [(seconds, row) for seconds, row in views if seconds is not None]
    return max(known, key=lambda one: one[0], default=None)


def _view_seconds(row: Mapping[str, str], evidence: Evidence) -> float | None:
    """Return the maximum age of a transaction's read view; None if it has none."""
    if row.get("isolation") not in _VIEW_PER_STATEMENT:
        return number(row, "seconds")
    if not row.get("text"):
        return None
    running = (one.seconds for one in evidence.statements if str(one.connection) == row["connection"])
    return min(number(row, "seconds"), next(running, float("inf")))


def _oldest_view_seconds(evidence: Evidence) -> float:
    found = oldest_view(evidence)
    return found[0] if found is not None else 0.0


def _history_growth(evidence: Evidence) -> float:
    """Return the growth of the history list length per second."""
    lengths = evidence.gauge("history_list_length")
    if not lengths:
        raise no_metric(evidence)
    return (lengths[-1] - lengths[0]) / max(evidence.seconds, 1e-3)


def _deadlock_search_load(evidence: Evidence) -> float:
    """Return the seconds that threads spend searching for deadlocks, per second of observation.

    Each row lock wait starts one search. The probe may be attached only part of the time, so its totals are
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


METRICS: Final = frozenset(
    {"deadlock_search_seconds", "deadlock_searches", "history_list_length", "row_lock_waits"}
)

FACTS: Final[FactFunctions] = {
    "oldest_transaction_seconds": _oldest_transaction_seconds,
    "oldest_view_seconds": _oldest_view_seconds,
    "deadlock_search_load": _deadlock_search_load,
    "deadlock_search_mean": _deadlock_search_mean,
    "history_growth": _history_growth,
}
