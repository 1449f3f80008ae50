"""Compute the facts about client threads that are waiting for a latch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from innoscope.diagnose.answers import ratio, snapshots

if TYPE_CHECKING:
    from innoscope.diagnose.evidence import Evidence, FactFunctions


def _latch_share(evidence: Evidence) -> float:
    """Return the share of active client threads that are waiting for a latch, spinning or asleep."""
    spin, asleep, active = _latches(evidence)
    return ratio(spin + asleep, active)


def _spinning_ratio(evidence: Evidence) -> float:
    """Return the share of spinning threads among the client threads that are waiting for a latch."""
    spin, asleep, _ = _latches(evidence)
    return ratio(spin, spin + asleep)


def _latches(evidence: Evidence) -> tuple[int, int, int]:
    snapshots(evidence)  # raises Unknown without stacks: the process list does not show these waits
    counts = evidence.threads(clients=True)
    return counts["spin"], counts["mutex_wait"], evidence.active_clients()


FACTS: Final[FactFunctions] = {
    "latch_share": _latch_share,
    "spinning_ratio": _spinning_ratio,
}
