"""Compute the facts about connections and logins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from innoscope.diagnose.answers import snapshots
from innoscope.diagnose.unavailable import Unknown

if TYPE_CHECKING:
    from innoscope.diagnose.evidence import Evidence, FactFunctions


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


def _sql_unanswered(evidence: Evidence) -> float:
    """Return 1 if the server did not respond in time to our connection or query, else 0."""
    missing = evidence.missing.get("sql")
    return float(missing is not None and missing.reason == "timeout")


def _dns_threads(evidence: Evidence) -> float:
    """Return the mean number of new connections whose client host name is being looked up in DNS."""
    taken = snapshots(evidence)
    found = sum(
        seen.count for seen in evidence.seen if seen.wait == "login" and "ip_to_hostname" in seen.functions
    )
    return found / len(taken)


METRICS: Final = frozenset({"connections", "connections_limit"})

FACTS: Final[FactFunctions] = {
    "connections_ratio": _connections_ratio,
    "refused": _refused,
    "dns_threads": _dns_threads,
    "sql_unanswered": _sql_unanswered,
}
