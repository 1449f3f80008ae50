"""Compute the facts about statements and the tables that they open."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from innoscope.diagnose.answers import grown, ratio, variable
from innoscope.diagnose.unavailable import Unknown

if TYPE_CHECKING:
    from innoscope.diagnose.evidence import Evidence, FactFunctions


def _statement_rate(evidence: Evidence) -> float:
    """Return the number of clients' statements per second (Questions), including Innoscope's own."""
    grown = evidence.change("statements")
    if grown is None:
        raise Unknown("sql", evidence.missing.get("sql"))
    return grown[0] / grown[1]


def _opens_per_statement(evidence: Evidence) -> float:
    """Return the number of table opens that missed the table cache, per statement."""
    return ratio(grown(evidence, "table_opens"), grown(evidence, "statements"))


METRICS: Final = frozenset({"statements", "table_opens"})

FACTS: Final[FactFunctions] = {
    "table_cache": partial(variable, name="table_open_cache"),
    "opens_per_statement": _opens_per_statement,
    "statement_rate": _statement_rate,
}
