"""Collect a server's own metrics over one persistent SQL connection.

There is at most one connection and one statement at a time. Every wait for the server has a timeout, no
statement waits for a metadata lock, and the pause between attempts grows with each failure.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Final

from innoscope.common.errors import SqlFailed
from innoscope.metrics.collectors import sql_plan
from innoscope.metrics.collectors.derived import derive
from innoscope.metrics.collectors.monitor import sections
from innoscope.metrics.collectors.sql_failures import denied_words, explain
from innoscope.metrics.collectors.sql_plan import Answers
from innoscope.target import sql

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from innoscope.common.samples import Sample
    from innoscope.metrics.collectors.errors import CollectorFailed
    from innoscope.metrics.collectors.sql_catalog import SqlCatalog
    from innoscope.metrics.collectors.sql_plan import SqlPlan
    from innoscope.target.login import Connection

#: Seconds before the next attempt after the first failure. The pause doubles after each further failure.
_FIRST_PAUSE: Final = 0.5
#: Maximum seconds before the next attempt.
_LONGEST_PAUSE: Final = 5.0
#: Seconds after which the query plan is replaced, in case more counters have been enabled.
_PLAN_TTL_S: Final = 300.0
#: The column that marks enabled counters is STATUS in MySQL, and ENABLED in MariaDB 10.5 and newer.
_COUNTERS: Final = (
    "SELECT NAME, COUNT FROM information_schema.INNODB_METRICS WHERE STATUS = 'enabled'",
    "SELECT NAME, COUNT FROM information_schema.INNODB_METRICS WHERE ENABLED = 1",
)
_NO_TABLE: Final = 1109  # ER_UNKNOWN_TABLE: MySQL 5.5 has no INNODB_METRICS
_NO_COLUMN: Final = 1054  # ER_BAD_FIELD_ERROR


class SqlCollector:
    """Queries one server. ``connect`` returns a connection, or raises SqlFailed or BadFile."""

    name = "sql"

    def __init__(
        self,
        connect: Callable[[], Connection],
        catalog: SqlCatalog,
        flavour: str,
        version: tuple[int, ...],
        timeout: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.timeout = timeout
        self._connect = connect
        self._catalog = catalog
        self._flavour, self._version = flavour, version
        self._clock = clock
        self._session: _Session | None = None
        self._pause = 0.0
        self._not_before = 0.0
        self._last_failure: CollectorFailed | None = None
        self._earlier: tuple[float, dict[str, float]] | None = None

    @property
    def shortfall(self) -> str | None:
        """Return ``reason: message`` if the account lacks privileges for some of the metrics, else None."""
        return f"denied: {self._session.denied}" if self._session and self._session.denied else None

    def collect(self) -> Iterable[Sample]:
        """Return all samples, including derived ones. Raise CollectorFailed on failure."""
        if self._last_failure is not None and self._clock() < self._not_before:
            raise self._last_failure
        try:
            session = self._session or self._open()
            samples = session.samples()
        except Exception as error:
            self.close()
            raise self._failed(error) from error
        self._pause, self._last_failure = 0.0, None
        return [*samples, *self._derived(samples)]

    def close(self) -> None:
        """Close the connection without waiting for the server."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def _open(self) -> _Session:
        self._session = _Session(self._connect(), self._catalog, self._flavour, self._version, self._clock)
        return self._session

    def _failed(self, error: Exception) -> CollectorFailed:
        self._pause = min(max(2 * self._pause, _FIRST_PAUSE), _LONGEST_PAUSE)
        self._not_before = self._clock() + self._pause
        self._last_failure = explain(error)
        return self._last_failure

    def _derived(self, samples: Sequence[Sample]) -> list[Sample]:
        values = {
            ".".join((sample.metric, *sample.labels)): float(sample.value)
            for sample in samples
            if isinstance(sample.value, int | float)
        }
        now = self._clock()
        earlier, self._earlier = self._earlier, (now, values)
        return derive(values, earlier, now)


class _Session:
    """One connection and its query plan. ``denied`` is the error about a missing privilege, or ""."""

    def __init__(
        self,
        connection: Connection,
        catalog: SqlCatalog,
        flavour: str,
        version: tuple[int, ...],
        clock: Callable[[], float],
    ) -> None:
        self._connection = connection
        self._catalog = catalog
        self._flavour, self._version = flavour, version
        self._clock = clock
        self._plan: SqlPlan | None = None
        self._planned_at = 0.0
        self._counters_sql: str | None = None
        self.denied = ""
        for assignment in catalog.session:
            with contextlib.suppress(SqlFailed):  # an unknown variable, or a missing privilege
                self._rows(f"SET SESSION {assignment}")

    def samples(self) -> list[Sample]:
        """Query the server and return the samples."""
        if self._plan is None or self._clock() - self._planned_at > _PLAN_TTL_S:
            self._plan = self._make_plan()
            self._planned_at = self._clock()
        plan = self._plan
        counters, monitor = plan.names("counter"), plan.names("monitor")
        answers = Answers(
            self._status(plan.names("status")),
            self._variables(plan.names("variable")),
            self._counters(counters) if counters else {},
            self._monitor() if monitor else {},
        )
        return plan.samples(answers)

    def close(self) -> None:
        self._connection.abandon()

    def _make_plan(self) -> SqlPlan:
        """Query one kind of source after another until each series has a source, and return the plan.

        The InnoDB monitor is queried last, because it is expensive.
        """
        self.denied = ""
        answers = Answers(self._status(), self._variables(sql_plan.variables_of(self._catalog)))
        queried = ["status", "variable", "formula"]
        for kind, query in (("counter", self._query_counters), ("monitor", self._query_monitor)):
            plan, wanting = sql_plan.make(self._catalog, self._flavour, self._version, answers, queried)
            if not wanting:
                return plan
            try:
                query(answers)
            except SqlFailed as error:
                words = denied_words(error)
                if words is None:
                    raise
                self.denied = words
            queried.append(kind)
        return sql_plan.make(self._catalog, self._flavour, self._version, answers, queried)[0]

    def _query_counters(self, answers: Answers) -> None:
        answers.counters = self._counters()

    def _query_monitor(self, answers: Answers) -> None:
        answers.monitor = self._monitor()

    def _status(self, names: Sequence[str] = ()) -> dict[str, str]:
        return self._pairs(_narrowed("SHOW GLOBAL STATUS", names))

    def _variables(self, names: Sequence[str]) -> dict[str, str]:
        return self._pairs(_narrowed("SHOW GLOBAL VARIABLES", names)) if names else {}

    def _counters(self, names: Sequence[str] = ()) -> dict[str, int]:
        """Return the enabled counters; empty if the server has no INNODB_METRICS table."""
        for statement in (self._counters_sql,) if self._counters_sql else _COUNTERS:
            narrowed = statement + (f" AND NAME IN ({_quoted(names)})" if names else "")
            try:
                rows = self._rows(narrowed)
            except SqlFailed as error:
                code = error.__cause__.args[0] if error.__cause__ and error.__cause__.args else None
                if code == _NO_TABLE:
                    return {}
                if code != _NO_COLUMN:
                    raise
            else:
                self._counters_sql = statement
                return {sql.as_text(name): int(count) for name, count in rows}
        return {}

    def _monitor(self) -> dict[str, str]:
        """Return the sections of InnoDB's status.

        The connection's copy of the result is discarded, because it contains literals.
        """
        rows = self._rows("SHOW ENGINE INNODB STATUS")
        self._connection.forget_result()
        return sections(sql.as_text(rows[0][2])) if rows else {}

    def _pairs(self, statement: str) -> dict[str, str]:
        return {sql.as_text(name): sql.as_text(value) for name, value in self._rows(statement)}

    def _rows(self, statement: str) -> Sequence[tuple[Any, ...]]:
        return sql.rows(self._connection, statement)


def _narrowed(statement: str, names: Sequence[str]) -> str:
    return f"{statement} WHERE Variable_name IN ({_quoted(names)})" if names else statement


def _quoted(names: Sequence[str]) -> str:
    """Return the names as quoted SQL strings. Names in the catalog need no escaping."""
    return ", ".join(f"'{name}'" for name in names)
