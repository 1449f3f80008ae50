"""Read snapshots, and answers to the queries of questions.yaml. Raises Unknown if they are missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from innoscope.diagnose.unavailable import Unknown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from innoscope.diagnose.evidence import Evidence
    from innoscope.sampling.snapshot_history import SnapshotSummary


def rows(evidence: Evidence, question: str) -> tuple[Mapping[str, str], ...]:
    """Return the rows of a query of questions.yaml. Raises Unknown if there is no answer to it."""
    if question in evidence.answers:
        return evidence.answers[question]
    raise Unknown("sql", evidence.missing.get(f"sql.{question}") or evidence.missing.get("sql"))


def number(row: Mapping[str, str], column: str) -> float:
    """Return a column's value as a number; 0 if it is empty or not a number."""
    try:
        return float(row.get(column) or 0)
    except ValueError:
        return 0.0


def snapshots(evidence: Evidence) -> Sequence[SnapshotSummary]:
    """Return the snapshots. Raises Unknown if there are none, or if the process list replaces them."""
    if not evidence.snapshots or "looks" in evidence.missing:
        raise Unknown("looks", evidence.missing.get("looks"))
    return evidence.snapshots
