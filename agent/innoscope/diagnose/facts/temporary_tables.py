"""Compute the facts about internal temporary tables."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from innoscope.diagnose.answers import snapshots, variable
from innoscope.sampling.snapshot_history import CLIENT

if TYPE_CHECKING:
    from innoscope.diagnose.evidence import Evidence, FactFunctions

#: MariaDB functions that write a row of an internal temporary table, and functions of Aria.
_TEMPORARY_ROW: Final = re.compile(r"handler::ha_\w+_tmp_row$")
_ARIA: Final = re.compile(r"(_?ma_|maria_|ha_maria::|create_internal_tmp_table)")


def _disk_table_threads(evidence: Evidence) -> float:
    """Return the mean number of client threads whose stack proves that their temporary table is on disk.

    MariaDB's SQL layer writes rows to in-memory and on-disk tables with the same functions. Only Aria's own
    functions prove that the table is on disk, and in stripped builds they have no symbols.
    """
    taken = snapshots(evidence)
    proven = sum(
        seen.count
        for seen in evidence.seen
        if (seen.kind, seen.wait) == (CLIENT, "temporary_table")
        and (
            not any(_TEMPORARY_ROW.match(function) for function in seen.functions)
            or any(_ARIA.match(function) for function in seen.functions)
        )
    )
    return proven / len(taken)


def _temporary_table_limit(evidence: Evidence) -> float:
    """Return the maximum size of an internal in-memory temporary table, in bytes.

    max_heap_table_size does not limit TempTable tables (MySQL 8.0), but has the same default.
    """
    return min(variable(evidence, "tmp_table_size"), variable(evidence, "max_heap_table_size"))


FACTS: Final[FactFunctions] = {
    "disk_table_threads": _disk_table_threads,
    "temporary_table_limit": _temporary_table_limit,
}
