"""Describe a replica's applier threads: the statements they run, and whether they wait for locks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from innoscope.diagnose import facts

if TYPE_CHECKING:
    from innoscope.diagnose.evidence import Evidence, Statement

#: Limit on the applier threads that are shown.
_MAX_APPLIERS = 3


def running(evidence: Evidence) -> list[str]:
    """Return the appliers' descriptions, such as ``applier, connection 5, Updating for 31 s: UPDATE t …``."""
    return [_description(one) for one in facts.appliers(evidence)[:_MAX_APPLIERS]]


def waits_for_rows(evidence: Evidence) -> bool:
    """Return whether an applier's transaction waits for a row lock."""
    appliers = {str(one.connection) for one in facts.appliers(evidence)}
    transactions = evidence.answers.get("transactions", ())
    return any(row["state"] == "LOCK WAIT" and row["connection"] in appliers for row in transactions)


def waits_for_table(evidence: Evidence) -> bool:
    """Return whether an applier waits for a metadata lock."""
    return any("metadata lock" in one.state for one in facts.appliers(evidence))


def _description(one: Statement) -> str:
    text = f": {one.text}" if one.text else ""
    return f"applier, connection {one.connection}, {one.state or one.command} for {one.seconds:,} s{text}"
