"""Compute the facts about the redo log's capacity and crash recovery."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from innoscope.diagnose.answers import grown, no_metric
from innoscope.diagnose.unavailable import Unknown

if TYPE_CHECKING:
    from innoscope.diagnose.evidence import Evidence, FactFunctions


def _redo_capacity_seconds(evidence: Evidence) -> float:
    """Return the seconds needed to fill the redo log at the measured rate; infinite if the rate is 0."""
    limit, written = evidence.gauge("checkpoint_age_max_bytes"), evidence.change("redo_written_bytes")
    if not limit or written is None:
        raise no_metric(evidence)
    return limit[-1] * written[1] / written[0] if written[0] else math.inf


def _redo_write_bytes(evidence: Evidence) -> float:
    """Return the mean size in bytes of a write to the redo log files."""
    writes = grown(evidence, "redo_file_writes")
    if not writes:
        raise Unknown("redo_file_writes", evidence.missing.get("sql"))
    return grown(evidence, "redo_file_bytes") / writes


def _recovery_rate(evidence: Evidence) -> float:
    """Return the rate at which crash recovery scans the redo log, in bytes per second."""
    reached = [
        (reading.at, float(value))
        for reading in evidence.readings
        if isinstance(value := reading.values.get("recovery_scanned_bytes"), int | float) and value
    ]
    if len(reached) < 2 or reached[-1][1] <= reached[0][1]:
        raise Unknown("memory", evidence.missing.get("memory"))
    return (reached[-1][1] - reached[0][1]) / (reached[-1][0] - reached[0][0])


def _recovery_full_seconds(evidence: Evidence) -> float:
    """Return the seconds needed to scan a full redo log at the current rate.

    This is an upper bound on the duration of the current recovery's scan.
    """
    limit = evidence.gauge("checkpoint_age_max_bytes")
    if not limit or not limit[-1]:
        raise Unknown("memory", evidence.missing.get("memory"))
    return limit[-1] / _recovery_rate(evidence)


METRICS: Final = frozenset({
    "checkpoint_age_max_bytes", "recovery_scanned_bytes", "redo_file_bytes", "redo_file_writes",
    "redo_written_bytes",
})  # fmt: skip

FACTS: Final[FactFunctions] = {
    "redo_capacity_seconds": _redo_capacity_seconds,
    "redo_write_bytes": _redo_write_bytes,
    "recovery_rate": _recovery_rate,
    "recovery_full_seconds": _recovery_full_seconds,
}
