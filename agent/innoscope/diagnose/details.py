"""Lines of evidence that contain names and messages, which signals cannot express."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from innoscope.diagnose import replication_threads
from innoscope.diagnose.answers import rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from innoscope.diagnose.evidence import Evidence

#: Maximum number of tables that are shown.
_MAX_TABLES: Final = 5


def applier_tables(evidence: Evidence) -> list[str]:
    """Return a line with the tables that the appliers changed. Raises Unknown if the server lists none."""
    tables = dict.fromkeys(f"{row['schema']}.{row['object']}" for row in rows(evidence, "applier_tables"))
    return [f"it changes {', '.join(list(tables)[:_MAX_TABLES])}"] if tables else []


#: Functions that return the lines, by the value of ``details`` in a rule. They may raise Unknown.
DETAILS: Final[Mapping[str, Callable[[Evidence], list[str]]]] = {
    "applier_tables": applier_tables,
    "replication_errors": replication_threads.errors,
}
