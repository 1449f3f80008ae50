"""Query the files of the history with DuckDB, if it is installed."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from innoscope.common.errors import ExitCode, InnoscopeError, SqlFailed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from innoscope.sampling.sessions.report import History

#: Columns of the tables, for empty views if the history has no file of a table.
_COLUMNS: Final = {
    "samples": "taken_at TIMESTAMPTZ, weight DOUBLE, server VARCHAR, tid INTEGER, connection BIGINT, "
    "blocker_connection BIGINT, stack BIGINT, kind VARCHAR, user VARCHAR, schema VARCHAR, digest VARCHAR, "
    "command VARCHAR, wait VARCHAR, object VARCHAR, blocker_digest VARCHAR, statement_trust VARCHAR, "
    "stack_trust VARCHAR",
    "snapshots": "taken_at TIMESTAMPTZ, weight DOUBLE, server VARCHAR",
    "stacks": "stack BIGINT, functions VARCHAR[]",
    "digests": "digest VARCHAR, text VARCHAR",
}
#: Tables in which a row may occur once in each hour.
_DICTIONARIES: Final = frozenset({"stacks", "digests"})
_MEMORY: Final = "512MB"
#: The samples that are blocked, with the root of their chain of blockers. A longer chain counts as a cycle.
_BLOCKERS: Final = """
CREATE VIEW blockers AS
WITH RECURSIVE
blocked AS (SELECT * FROM samples WHERE blocker_connection IS NOT NULL),
links AS (
    SELECT server, taken_at, connection, any_value(blocker_connection) AS blocker_connection
    FROM blocked WHERE connection IS NOT NULL GROUP BY ALL
),
chains AS (
    SELECT server, taken_at, tid, blocker_connection AS root_connection, 1 AS depth FROM blocked
    UNION ALL
    SELECT server, taken_at, tid, links.blocker_connection, depth + 1
    FROM chains JOIN links USING (server, taken_at)
    WHERE links.connection = root_connection AND depth < 1000
),
roots AS (
    SELECT server, taken_at, tid, max(depth) AS depth, arg_max(root_connection, depth) AS root_connection
    FROM chains GROUP BY ALL
)
SELECT blocked.taken_at, blocked.weight, server, blocked.tid, blocked.connection, blocked.user,
    blocked.schema, blocked.digest, blocked.wait, blocked.object,
    blocked.blocker_connection, blocked.blocker_digest, depth,
    CASE WHEN depth < 1000 THEN roots.root_connection END AS root_connection,
    CASE WHEN depth < 1000 THEN latest.digest END AS root_digest,
    coalesce(depth < 1000 AND latest.taken_at = blocked.taken_at, false) AS root_executes
FROM blocked JOIN roots USING (server, taken_at, tid)
ASOF LEFT JOIN (SELECT server, connection, taken_at, digest FROM samples WHERE digest IS NOT NULL) AS latest
    ON server = latest.server AND roots.root_connection = latest.connection
    AND blocked.taken_at >= latest.taken_at
"""


class NoDuckDb(InnoscopeError):
    """DuckDB is not installed."""

    exit_code = ExitCode.FAILURE


def query(history: History, statement: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the names of the columns, and the rows. Raise NoDuckDb, or SqlFailed with DuckDB's message."""
    try:
        duckdb = import_module("duckdb")  # optional, and 50 MB in memory
    except ImportError as error:
        raise NoDuckDb(
            "`innoscope history sql` needs DuckDB, which is not installed",
            remedy=f"{sys.executable} -m pip install duckdb\n"
            "without DuckDB: innoscope history --by wait,user --json",
        ) from error
    connection = duckdb.connect(config={"memory_limit": _MEMORY, "autoinstall_known_extensions": "false"})
    try:
        for table in _COLUMNS:
            connection.execute(_view(table, history.files(table, *history.span)))
        connection.execute(_BLOCKERS)
        found = connection.execute(statement)
        return [column[0] for column in found.description or ()], found.fetchall()
    except duckdb.Error as error:
        raise SqlFailed(
            f"cannot run the query: {error}", remedy="columns of the views: docs/history.md"
        ) from error
    finally:
        connection.close()


def _view(table: str, paths: Sequence[Path]) -> str:
    """Return the statement that creates a view of a table's valid files."""
    distinct = "DISTINCT " if table in _DICTIONARIES else ""
    if not paths:
        columns = ", ".join(
            f'CAST(NULL AS {kind}) AS "{name}"'
            for name, kind in (column.split(" ") for column in _COLUMNS[table].split(", "))
        )
        return f"CREATE VIEW {table} AS SELECT {columns} WHERE false"
    names = ", ".join("'" + str(path).replace("'", "''") + "'" for path in paths)
    return f"CREATE VIEW {table} AS SELECT {distinct}* FROM read_parquet([{names}])"  # noqa: S608 - quoted
