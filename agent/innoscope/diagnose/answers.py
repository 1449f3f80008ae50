"""Read snapshots, counters and query results from the evidence. Raise Unknown if the data is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from innoscope.diagnose.unavailable import Unknown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from innoscope.diagnose.evidence import Evidence
    from innoscope.memory.locks.blocked_rows import BlockedRow
    from innoscope.sampling.snapshot_history import SnapshotSummary

#: The query that returns the waits for row locks.
ROW_LOCK_WAITS: Final = "row_lock_waits"


def rows(evidence: Evidence, query: str) -> tuple[Mapping[str, str], ...]:
    """Return the result rows of a query in questions.yaml. Raise Unknown if there is no result."""
    if query in evidence.answers:
        return evidence.answers[query]
    raise Unknown("sql", evidence.missing.get(f"sql.{query}") or evidence.missing.get("sql"))


def number(row: Mapping[str, str], column: str) -> float:
    """Return a column's value as a number; 0 if it is empty or not a number."""
    try:
        return float(row.get(column) or 0)
    except ValueError:
        return 0.0


def snapshots(evidence: Evidence) -> Sequence[SnapshotSummary]:
    """Return the snapshots. Raise Unknown if there are none, or if the process list replaces them."""
    if not evidence.snapshots or "looks" in evidence.missing:
        raise Unknown("looks", evidence.missing.get("looks"))
    return evidence.snapshots


def variable(evidence: Evidence, name: str) -> float:
    """Return the value of a system variable. Raise Unknown if it was not queried or does not exist."""
    for row in rows(evidence, "variables"):
        if row["name"] == name:
            return number(row, "value")
    raise Unknown("sql", None)


def grown(evidence: Evidence, metric: str, label: str | None = None) -> float:
    """Return a counter's growth, by default summed over labels. Raise Unknown if it was not read twice."""
    keys = (
        [f"{metric}.{label}"] if label else [metric, *(f"{metric}.{one}" for one in evidence.labels(metric))]
    )
    changes = [change[0] for key in keys if (change := evidence.change(key)) is not None]
    if not changes:
        source = next((name for name in ("probes", "memory", "sql") if name in evidence.missing), None)
        raise Unknown(source or metric, evidence.missing.get(source or ""))
    return sum(changes)


def no_metric(evidence: Evidence) -> Unknown:
    """Return the exception for a metric that neither the server's memory nor SQL provides."""
    return Unknown("memory or sql", evidence.missing.get("memory") or evidence.missing.get("sql"))


def ratio(part: float, whole: float) -> float:
    """Return ``part / whole``; 0 if the whole is 0."""
    return part / whole if whole else 0.0


def with_blocked_rows(
    results: Mapping[str, tuple[Mapping[str, str], ...]], blocked: Sequence[BlockedRow]
) -> Mapping[str, tuple[Mapping[str, str], ...]]:
    """Return the query results with the waits for row locks from memory, unless SQL returned any.

    Waits from SQL get the index from memory, as column ``lock``, if memory shows the same blocker. Other
    waits are not combined: two connections may have waited for each other at different times, which would
    look like a cycle.
    """
    if not blocked:
        return results
    locks = {(str(one.waiter), str(one.blocker)): one.lock or "" for one in blocked}
    from_sql = results.get(ROW_LOCK_WAITS) or ()
    pairs = [(row, (row["waiter"], row["blocker"])) for row in from_sql]
    waits = [{**row, "lock": locks.get(pair, "")} for row, pair in pairs] or [
        {"waiter": waiter, "blocker": blocker, "lock": lock} for (waiter, blocker), lock in locks.items()
    ]
    return {**results, ROW_LOCK_WAITS: tuple(waits)}
