"""Compute the facts about the observation itself, and about toggles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from innoscope.diagnose.evidence import Evidence, FactFunctions


def _blind(evidence: Evidence) -> float:
    """Return 1 if snapshots are supported but none completed within the observation time, else 0."""
    missing = evidence.missing.get("looks")
    return float(not evidence.snapshots and (missing is None or missing.reason == "timeout"))


def _observed_seconds(evidence: Evidence) -> float:
    return evidence.seconds


def _toggles_in_force(evidence: Evidence) -> float:
    return float(len(evidence.labels("toggle_in_force")))


METRICS: Final = frozenset({"toggle_in_force"})

FACTS: Final[FactFunctions] = {
    "blind": _blind,
    "observed_seconds": _observed_seconds,
    "toggles_in_force": _toggles_in_force,
}
