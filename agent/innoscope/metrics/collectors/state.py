"""Collect the state of replication, of the cluster and of transactions over a second SQL connection.

The queries run every ``interval_s`` seconds; between runs, the last samples are returned. If a query
hangs, the metrics of the first connection (sql.py) are not affected.
"""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from innoscope.common.errors import SqlFailed
from innoscope.common.labels import label
from innoscope.common.samples import Sample
from innoscope.metrics.collectors.sql_failures import explain
from innoscope.metrics.collectors.state_catalog import ROW
from innoscope.target import sql, version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from innoscope.metrics.collectors.errors import CollectorFailed
    from innoscope.metrics.collectors.state_catalog import ColumnSeries, StateCatalog, StateQuery
    from innoscope.target.login import Connection

#: Maximum pause in seconds after failures. The pause doubles with each failure.
_LONGEST_PAUSE_S: Final = 60.0
#: Maximum number of rows to use of each result.
_MAX_ROWS: Final = 16
_CROWD: Final = "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'"


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The table with the source's heartbeat, and whether its timestamps are in UTC."""

    table: str
    utc: bool

    def statement(self, template: str) -> str:
        """Return the statement with the table's quoted name and the function for the current time."""
        table = ".".join(f"`{part}`" for part in self.table.split("."))
        return template.format(table=table, now="UTC_TIMESTAMP" if self.utc else "NOW")


class StateCollector:
    """Queries one server. ``connect`` returns a connection, or raises SqlFailed or BadFile.

    If the version is unknown, because the server is on another host or its memory cannot be read, flavour
    and version are taken from the server's greeting.
    """

    name = "state"

    def __init__(
        self,
        connect: Callable[[], Connection],
        catalog: StateCatalog,
        flavour: str,
        number: tuple[int, ...],
        interval_s: float = 10.0,
        heartbeat: Heartbeat | None = None,
        timeout: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.timeout = timeout
        self._connect = connect
        self._catalog = catalog
        self._flavour, self._number = flavour, number
        self._interval_s, self._heartbeat = interval_s, heartbeat
        self._clock = clock
        self._connection: Connection | None = None
        self._samples: list[Sample] = []
        self._failure: CollectorFailed | None = None
        self._pause_s = 0.0
        self._next_at = -math.inf
        self.shortfall: str | None = None

    def collect(self) -> Iterable[Sample]:
        """Return the samples, at most ``interval_s`` seconds old. Raise CollectorFailed on failure.

        If the account lacks a privilege, or a statement is refused, ``shortfall`` is ``reason: message``.
        """
        if self._clock() >= self._next_at:
            self._run()
        if self._failure is not None:
            raise self._failure
        return self._samples

    def close(self) -> None:
        """Close the connection without waiting for the server."""
        if self._connection is not None:
            self._connection.abandon()
            self._connection = None

    def _run(self) -> None:
        try:
            connection = self._connection or self._open()
            self.shortfall = None
            self._samples = list(self._query(connection))
        except Exception as error:
            self.close()
            self._failure = explain(error)
            self._pause_s = min(max(2 * self._pause_s, self._interval_s), _LONGEST_PAUSE_S)
            self._next_at = self._clock() + self._pause_s
        else:
            self._failure, self._pause_s = None, 0.0
            self._next_at = self._clock() + self._interval_s

    def _open(self) -> Connection:
        connection = self._connection = self._connect()
        if not self._number:
            text = str(getattr(connection, "server_version", ""))
            self._flavour = "mariadb" if "MariaDB" in text else "mysql"
            self._number = version.parse(text)
        for assignment in self._catalog.session:
            with contextlib.suppress(SqlFailed):  # an unknown variable, or a missing privilege
                sql.rows(connection, f"SET SESSION {assignment}")
        return connection

    def _query(self, connection: Connection) -> Iterator[Sample]:
        """Yield the samples of all queries. If the server refuses a query, the others still run."""
        waiting = self._waiting(connection)
        for query, statement in self._statements():
            if query.crowd is not None and waiting > query.crowd:
                continue
            try:
                columns, rows = sql.table(connection, statement)
            except SqlFailed as error:
                failed = explain(error)
                if failed.reason in ("gone", "timeout"):
                    raise
                self.shortfall = self.shortfall or f"{failed.reason}: {failed.in_one_line}"
            else:
                yield from samples(query, columns, rows)

    def _statements(self) -> Iterator[tuple[StateQuery, str]]:
        for query in self._catalog.queries.values():
            statement = query.statement(self._flavour, self._number)
            if statement is not None:
                yield query, statement
        template = self._catalog.heartbeat.statement(self._flavour, self._number)
        if self._heartbeat is not None and template is not None:
            yield self._catalog.heartbeat, self._heartbeat.statement(template)

    @staticmethod
    def _waiting(connection: Connection) -> float:
        rows = sql.rows(connection, _CROWD)
        return (number(rows[0][1]) or 0.0) if rows else 0.0


def samples(query: StateQuery, columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> Iterator[Sample]:
    """Yield the samples of a result."""
    for values in rows[:_MAX_ROWS]:
        row = dict(zip(columns, values, strict=True))
        name = label(sql.as_text(_first(row, query.row) or ""))
        if query.skip is not None and name.startswith(query.skip):
            continue
        for series in query.series:
            value = _value(series, row)
            if value is not None:
                labels = tuple(name if one == ROW else one for one in series.labels)
                yield Sample(series.metric, value, labels)


def _value(series: ColumnSeries, row: Mapping[str, Any]) -> float | None:
    found = _first(row, series.columns)
    if found is None or not series.texts:
        return number(found)
    return float(sql.as_text(found) in series.texts)


def _first(row: Mapping[str, Any], columns: Iterable[str]) -> Any:
    """Return the value of the first of these columns that the result contains; None if it contains none."""
    return next((row[column] for column in columns if column in row), None)


def number(value: Any) -> float | None:
    """Return a finite number; None for NULL and for everything else. The peer may be a fake server."""
    try:
        found = float(sql.as_text(value)) if value is not None else math.nan
    except ValueError:
        return None
    return found if math.isfinite(found) else None
