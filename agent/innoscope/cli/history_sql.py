"""Query the files of the history with DuckDB, if it is installed.

The user is often root, and the statement may come from anywhere. DuckDB can read and write any file
(duckdb.org/docs/stable/operations_manual/securing_duckdb/overview). Therefore DuckDB may open only the files
of the history, and a statement must be a SELECT, because COPY could overwrite these files.

The files may be forged, for example by a compromised agent. Therefore a root process switches to a non-root
owner of the files before DuckDB is loaded; it remains root only if root owns all of them. DuckDB opens only
regular files that the Rust core has checked. It opens them through the descriptors that were checked
(/proc/self/fd), because by then the path may refer to another file, such as a FIFO whose open blocks forever.
"""

from __future__ import annotations

import os
import pwd
import re
import resource
import sys
from contextlib import ExitStack
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from innoscope._native import NativeError, history_open
from innoscope.common.errors import BadFile, ExitCode, InnoscopeError, SqlFailed
from innoscope.daemon.agent.privileges import SystemAccount, drop

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path

    from innoscope.sampling.sessions.report import SessionHistory

#: The group to switch to if the owner of the files has no account on this host: nogroup or nobody.
_NO_GROUP: Final = 65534
#: Number of descriptors that this process may need for anything except the history's files.
_OTHER_DESCRIPTORS: Final = 200
#: The path by which DuckDB opens a file of the history. It refers to the file of the descriptor, even if the
#: file's own path refers to another file by then (proc_fd_link in the kernel's fs/proc/fd.c).
_DESCRIPTOR: Final = re.compile(r"/proc/self/fd/[0-9]+")
#: Columns of the tables, which define an empty view if a table has no file.
_COLUMNS: Final = {
    "samples": "taken_at TIMESTAMPTZ, weight DOUBLE, server VARCHAR, tid INTEGER, connection BIGINT, "
    "blocker_connection BIGINT, stack BIGINT, kind VARCHAR, user VARCHAR, schema VARCHAR, digest VARCHAR, "
    "command VARCHAR, wait VARCHAR, object VARCHAR, blocker_digest VARCHAR, statement_trust VARCHAR, "
    "stack_trust VARCHAR",
    "snapshots": "taken_at TIMESTAMPTZ, weight DOUBLE, server VARCHAR",
    "stacks": "stack BIGINT, functions VARCHAR[]",
    "digests": "digest VARCHAR, text VARCHAR",
}
#: Tables in which the same id may occur once per hour, and their id columns.
_DICTIONARIES: Final = {"stacks": "stack", "digests": "digest"}
#: DuckDB's settings: bounded memory and threads, no temporary files, no extensions, no Python variables.
_CONFIG: Final = {
    "memory_limit": "512MB",
    "threads": "4",
    "temp_directory": "",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_persistent_secrets": "false",
    "python_enable_replacements": "false",
}
#: Blocked samples, each with the root of its chain of blockers. A chain of 1,000 or more blockers counts as a
#: cycle.
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
    CASE WHEN depth < 1000 THEN
        CASE WHEN busy.connection IS NULL THEN latest.digest ELSE busy.digest END
    END AS root_digest,
    depth < 1000 AND busy.connection IS NOT NULL AS root_executes
FROM blocked JOIN roots USING (server, taken_at, tid)
LEFT JOIN (
    SELECT server, taken_at, connection, any_value(digest) AS digest FROM samples
    WHERE connection IS NOT NULL GROUP BY server, taken_at, connection
) AS busy ON server = busy.server AND blocked.taken_at = busy.taken_at
    AND roots.root_connection = busy.connection
ASOF LEFT JOIN (SELECT server, connection, taken_at, digest FROM samples WHERE digest IS NOT NULL) AS latest
    ON server = latest.server AND roots.root_connection = latest.connection
    AND blocked.taken_at >= latest.taken_at
"""


class NoDuckDb(InnoscopeError):
    """DuckDB is not installed, or too old."""

    exit_code = ExitCode.FAILURE


class SqlResult(NamedTuple):
    """The names of the columns, the rows, and notes on files that were skipped."""

    columns: list[str]
    rows: list[tuple[Any, ...]]
    notes: list[str]


def become_owner(paths: Iterable[Path]) -> None:
    """If this process is root, switch permanently to a user that owns some of the paths.

    If root owns all of them, remain root, because other users may be unable to read them. Raise BadFile if a
    path has been removed, or NoRights if the process cannot switch.
    """
    if os.geteuid() != 0:
        return
    try:
        owners = [one for path in paths for one in (path.lstat().st_uid, path.stat().st_uid)]
    except OSError as error:
        raise BadFile(f"the history changed: {error}", remedy="repeat the command") from error
    uid = next((uid for uid in owners if uid != 0), 0)
    if uid == 0:
        return
    try:
        gid = pwd.getpwuid(uid).pw_gid
    except KeyError:
        gid = _NO_GROUP
    drop(SystemAccount(str(uid), uid, gid, str(gid)))


def _load() -> Any:
    """Import the optional module duckdb, which takes 50 MB of memory. Raise NoDuckDb if it is missing."""
    try:
        return import_module("duckdb")
    except ImportError as error:
        raise NoDuckDb(
            "`innoscope history sql` needs DuckDB, which is not installed",
            remedy=f"{sys.executable} -m pip install duckdb\n"
            "without DuckDB: innoscope history --by wait,user --json",
        ) from error


def query(history: SessionHistory, statement: str) -> SqlResult:
    """Run a query as the owner of the history. Skip files that are damaged or not regular.

    Raise BadFile if no file can be read, NoDuckDb if DuckDB is missing or too old, or SqlFailed if the query
    is rejected or fails. Call this with ``limited_memory``, because the files may be forged.
    """
    files = {table: history.files(table, *history.span) for table in _COLUMNS}
    folders = {folder for part in history.parts for folder in (part.path, part.path.parent)}
    become_owner(chain(folders, *files.values()))
    duckdb = _load()
    notes: list[str] = []
    with ExitStack() as descriptors:
        _allow_descriptors(2 * sum(map(len, files.values())))  # DuckDB opens each file again
        tables = {table: _open(table, paths, notes, descriptors) for table, paths in files.items()}
        if notes and not any(tables.values()):
            raise BadFile(notes[0], remedy="the owner of a history must be able to read it: docs/history.md")
        return SqlResult(*_run(duckdb, tables, statement), notes)


def _run(
    duckdb: Any, tables: Mapping[str, Mapping[str, Path]], statement: str
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the names of the columns, and the rows. ``tables`` contains the result of ``_open`` by table."""
    try:
        connection = duckdb.connect(config=_CONFIG)
        connection.execute(f"SET allowed_paths = {_array(chain.from_iterable(tables.values()))}")
    except duckdb.Error as error:
        raise NoDuckDb(
            f"`innoscope history sql` needs DuckDB 1.2 or newer: {error}",
            remedy=f"{sys.executable} -m pip install --upgrade duckdb",
        ) from error
    try:
        connection.execute("SET enable_external_access = false")
        for table, paths in tables.items():
            connection.execute(_view(table, paths))
        connection.execute(_BLOCKERS)
        connection.execute("SET lock_configuration = true")
        if [one.type.name for one in connection.extract_statements(statement)] != ["SELECT"]:
            raise SqlFailed(
                "only one SELECT statement is accepted",
                remedy="to export samples: --json, or another program (docs/history.md)",
            )
        found = connection.execute(statement)
        return [column[0] for column in found.description or ()], found.fetchall()
    except (duckdb.Error, MemoryError) as error:
        paths = {opened: path for files in tables.values() for opened, path in files.items()}
        text = _DESCRIPTOR.sub(lambda found: str(paths.get(found[0], found[0])), str(error))
        reason = text if text and not isinstance(error, MemoryError) else "out of memory"
        raise SqlFailed(
            f"cannot run the query: {reason}",
            remedy="columns of the views: docs/history.md",
        ) from error
    finally:
        connection.close()


def _allow_descriptors(number: int) -> None:
    """Raise the limit on open files as far as permitted, so that this many more can be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, min(number + _OTHER_DESCRIPTORS, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _open(table: str, paths: Iterable[Path], notes: list[str], descriptors: ExitStack) -> dict[str, Path]:
    """Open the sound files until ``descriptors`` is closed. Add a note for each file that cannot be read.

    The keys of the result are the paths by which DuckDB opens the files.
    """
    found = {}
    for path in paths:
        try:
            descriptor = history_open(table, path)
            descriptors.callback(os.close, descriptor)
            found[f"/proc/self/fd/{descriptor}"] = path
        except OSError as error:
            notes.append(f"cannot read {path}: {error}")
        except NativeError as error:
            notes.append(f"cannot read {path}: {error.args[1]}")
    return found


def _array(paths: Iterable[str]) -> str:
    """Return the paths as a list in SQL."""
    return "[" + ", ".join(f"'{path}'" for path in paths) + "]"


def _view(table: str, paths: Collection[str]) -> str:
    """Return the statement that creates a view of a table's valid files."""
    distinct = f"DISTINCT ON ({_DICTIONARIES[table]}) " if table in _DICTIONARIES else ""
    if not paths:
        columns = ", ".join(
            f'CAST(NULL AS {kind}) AS "{name}"'
            for name, kind in (column.split(" ") for column in _COLUMNS[table].split(", "))
        )
        return f"CREATE VIEW {table} AS SELECT {columns} WHERE false"
    return f"CREATE VIEW {table} AS SELECT {distinct}* FROM read_parquet({_array(paths)})"  # noqa: S608 - quoted
