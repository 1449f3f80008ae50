"""What holds up a replica's applier: the statement it runs, and who has what it wants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from innoscope.diagnose import facts

if TYPE_CHECKING:
    from innoscope.diagnose.evidence import Evidence, Statement

#: Appliers that are told.
_MOST = 3


def running(evidence: Evidence) -> list[str]:
    """What each applier does, in words: ``applier, connection 5, Updating for 31 s: UPDATE t …``."""
    return [_words(one) for one in facts.appliers(evidence)[:_MOST]]


def waits_for_rows(evidence: Evidence) -> bool:
    """Whether an applier's transaction waits for a row."""
    appliers = {str(one.connection) for one in facts.appliers(evidence)}
    transactions = evidence.answers.get("transactions", ())
    return any(row["state"] == "LOCK WAIT" and row["connection"] in appliers for row in transactions)


def waits_for_table(evidence: Evidence) -> bool:
    """Whether one waits for a metadata lock."""
    return any("metadata lock" in one.state for one in facts.appliers(evidence))


def _words(one: Statement) -> str:
    text = f": {one.text}" if one.text else ""
    return f"applier, connection {one.connection}, {one.state or one.command} for {one.seconds:,} s{text}"
