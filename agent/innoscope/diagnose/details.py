"""Format evidence that signals cannot express, such as names and messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from innoscope.diagnose import replication_threads
from innoscope.diagnose.answers import number, rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from innoscope.diagnose.evidence import Evidence

#: Maximum number of tables to show.
_MAX_TABLES: Final = 5
#: Maximum number of transactions to show.
_MAX_ROLLBACKS: Final = 3


def applier_tables(evidence: Evidence) -> list[str]:
    """Return a line with the tables that the appliers changed. Raise Unknown if they are unknown."""
    tables = dict.fromkeys(f"{row['schema']}.{row['object']}" for row in rows(evidence, "applier_tables"))
    return [f"it changes {', '.join(list(tables)[:_MAX_TABLES])}"] if tables else []


def rollbacks(evidence: Evidence) -> list[str]:
    """Return a line for each transaction that is rolling back, largest first. Raise Unknown without SQL.

    InnoDB numbers the changes of each transaction. INNODB_TRX shows the next number as trx_rows_modified
    (trx->undo_no). A rollback decreases it (trx_roll_pop_top_rec_of_trx), so that it is the number of
    changes left to undo.
    """
    found = [row for row in rows(evidence, "transactions") if row["state"] == "ROLLING BACK"]
    found.sort(key=lambda row: -number(row, "rows_modified"))
    return [
        f"connection {row['connection']} had {number(row, 'rows_modified'):,.0f} changes left to undo,"
        f" {number(row, 'seconds'):,.0f} s after its transaction began"
        for row in found[:_MAX_ROLLBACKS]
    ]


#: Functions that return a finding's details, keyed by ``details`` in the rule. They may raise Unknown.
DETAILS: Final[Mapping[str, Callable[[Evidence], list[str]]]] = {
    "applier_tables": applier_tables,
    "rollbacks": rollbacks,
    "replication_errors": replication_threads.errors,
}
