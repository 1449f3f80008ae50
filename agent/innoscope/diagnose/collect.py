"""Collect evidence from all sources of one server in parallel, for a given number of seconds."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from innoscope.common import slowness
from innoscope.common.errors import InnoscopeError
from innoscope.diagnose import process_list
from innoscope.diagnose.answers import with_blocked_rows
from innoscope.diagnose.evidence import ConnectionActivity, Evidence, MissingSource, described
from innoscope.diagnose.host import HostCounters
from innoscope.diagnose.metric_readings import ReadingHistory
from innoscope.diagnose.rules import default_rules, metrics_read
from innoscope.diagnose.snapshot_loop import INTERVAL_S, MIN_SNAPSHOTS, SnapshotLoop
from innoscope.diagnose.sql_queries import SqlAnswers, query_all
from innoscope.memory.locks.owners import LockOwners
from innoscope.metrics.collectors import sql_catalog
from innoscope.metrics.collectors.memory import MemoryCollector
from innoscope.metrics.collectors.probes import ProbesCollector, on_a_thread
from innoscope.metrics.collectors.process import ProcessCollector
from innoscope.metrics.collectors.sql import SqlCollector
from innoscope.metrics.collectors.toggles import TogglesFile
from innoscope.metrics.collectors.waits import open_engine
from innoscope.sampling.snapshot_history import CLIENT, SnapshotHistory
from innoscope.target import sql
from innoscope.target.discover import still_same
from innoscope.target.unanswered import Unanswered

if TYPE_CHECKING:
    from collections.abc import Callable

    from innoscope.common.samples import Sample
    from innoscope.metrics.collectors.runner import Collector
    from innoscope.target.login import Connection
    from innoscope.target.model import Target

#: Seconds between readings of all metrics. A shorter interval would put more load on the server.
_EVERY_S: Final = 2.0
#: Maximum number of seconds to wait for all collectors to finish one reading.
_PATIENCE_S: Final = 0.8
_SQL_TIMEOUT_S: Final = 1.0
#: Maximum number of connections on which a timed-out request may still be running, for the SQL queries and
#: ``Sources.also`` together. The metrics collectors have a separate limit.
_MAX_UNANSWERED: Final = 2
#: Maximum extra seconds to reach MIN_SNAPSHOTS, and to read the lock layout if threads are waiting for locks.
#: Loading a server's symbols takes seconds on a busy host. On a slow host, the limit is raised to the time
#: that MIN_SNAPSHOTS snapshots take.
_MAX_EXTRA_S: Final = 20.0
_MIN_ROUND_S: Final = 0.2
#: Seconds between progress reports.
_PROGRESS_EVERY_S: Final = 1.0
#: Share of the observation time after which the SQL queries run.
_QUERY_AFTER: Final = 0.5
#: Maximum age in seconds of the snapshot from which row lock waiters are counted.
_RECENT_S: Final = 10.0
#: Probe overhead budget with all probes, as a share of the server's CPUs. It is lower than the agent's
#: budget, because all sources run at the same time here, and together they must cost a server on two busy
#: CPUs less than 3 %.
_BUDGET_OF_ALL: Final = 0.004
#: The budget with only the probes that findings use. The other probes took 40 % of the budget above. This
#: budget is lower by that share, so that the remaining probes are attached for the same share of the time as
#: with all probes.
_BUDGET_OF_READ: Final = 0.0024


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources that an EvidenceCollector may use."""

    sql: bool = True
    probes: bool = True
    defaults_file: str | None = None
    user: str | None = None
    #: Also attach the probes that no finding uses, so that an incident file contains more metrics.
    all_probes: bool = True
    #: A function that runs further queries. Its arguments are ``connect(timeout in seconds)``
    #: and the number of row lock waiters.
    also: Callable[[Callable[[float], Connection], int], None] | None = None


class EvidenceCollector:
    """Collects evidence from all sources of one server. ``close`` detaches the probes; it may take seconds.

    With ``span_s``, evidence older than this number of seconds is dropped, and lock owners are recorded only
    between ``hold`` and ``release``. Without ``span_s``, nothing is dropped, and lock owners are always
    recorded. Snapshots are at least ``interval_s`` seconds apart.
    """

    def __init__(
        self,
        target: Target,
        sources: Sources,
        *,
        span_s: float | None = None,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._target, self._sources = target, sources
        self._opened_at = time.time()
        self._host = HostCounters(target.pid)
        self._lock_owners = LockOwners(target) if span_s is None else None
        history = SnapshotHistory(span_s)
        self._snapshots = SnapshotLoop(target, open_engine, self._lock_owners, history, interval_s)
        self._probes = self._open_probes()
        self._unanswered = Unanswered(_MAX_UNANSWERED)
        self._readings = ReadingHistory(self._collectors(), span_s)

    def run(self, seconds: float, progress: Callable[[float], None] = lambda _: None) -> Evidence:
        """Collect for ``seconds``, but only while the server runs.

        Return all evidence since the collector was created. Continue for longer if there are too few
        snapshots, or if threads are waiting for locks whose layout has not been read yet. Call ``progress``
        with the elapsed seconds.
        """
        clock = time.monotonic()
        sql_answers: SqlAnswers | None = None
        read_at = 0.0
        while self._continues(elapsed := time.monotonic() - clock, seconds):
            progress(elapsed)
            if sql_answers is None and self._sources.sql and elapsed >= _QUERY_AFTER * seconds:
                sql_answers = self.query_locks()
            if elapsed >= read_at:
                self.read()
                read_at = elapsed + _EVERY_S
            rest = min(_PROGRESS_EVERY_S, max(seconds - elapsed, _MIN_ROUND_S))
            time.sleep(max(0.0, rest - (time.monotonic() - clock - elapsed)))
        if still_same(self._target):
            if sql_answers is None and self._sources.sql:  # the host was too busy to query in the loop
                sql_answers = self.query_locks()
            # If the host stalled only briefly, a second attempt succeeds.
            if sql_answers is not None and sql_answers.lacks_blockers:
                sql_answers = sql_answers.completed_by(self._query_all())
            self.read()
        self._snapshots.close()  # waits for the first snapshot, even if it takes longer than ``seconds``
        return self.between(self._opened_at, time.time(), sql_answers)

    def read(self) -> None:
        """Read all metrics once."""
        self._readings.read(slowness.scaled(_PATIENCE_S))

    @property
    def ready(self) -> bool:
        """Return whether there is a snapshot, or an error that explains why there is none."""
        return bool(self._snapshots.history.since(0)) or self._snapshots.failure is not None

    def _continues(self, elapsed: float, seconds: float) -> bool:
        taken = len(self._snapshots.history.since(0))
        few = taken < MIN_SNAPSHOTS or (self._lock_owners is not None and self._lock_owners.pending)
        more = few and self._snapshots.failure is None
        longer = max(_MAX_EXTRA_S, MIN_SNAPSHOTS * self._snapshots.period_s) if more else 0.0
        return elapsed < seconds + longer and still_same(self._target)

    def close(self) -> None:
        """Stop the snapshots, and detach the probes."""
        self._snapshots.close()
        self._readings.close()
        if self._probes is not None:
            self._probes.close()

    def hold(self) -> None:
        """Start recording lock owners, until ``release`` is called."""
        self._snapshots.hold(LockOwners(self._target))
        self._lock_owners = None

    def release(self) -> None:
        """Stop recording lock owners. Until the next ``hold``, ``between`` returns the recorded owners."""
        self._lock_owners = self._snapshots.hold(None)

    def without_sql(self, begun: float, ended: float) -> Evidence:
        """Return the evidence between two Unix times, without the results of SQL queries."""
        return self.between(begun, ended)

    def between(self, begun: float, ended: float, sql_answers: SqlAnswers | None = None) -> Evidence:
        """Return the evidence between two Unix times, with the results of SQL queries if given."""
        sql_answers = sql_answers or SqlAnswers()
        snapshots, seen, files, failure = self._snapshots.between(begun, ended)
        if failure and sql_answers.statements:
            transactions = sql_answers.answers.get("transactions", ())
            snapshots = (process_list.summary(ended, sql_answers.statements, transactions),)
        readings, missing = self._readings.between(begun, ended)
        if "sql" in missing:
            missing["sql"] = _with_remedy(missing["sql"], sql_answers)
        missing |= self._disabled() | ({"looks": failure} if failure else {})
        return Evidence(
            server=described(self._target),
            begun=begun,
            ended=ended,
            readings=readings,
            snapshots=snapshots,
            seen=seen,
            files=files,
            statements=self._with_threads(sql_answers),
            owners=self._lock_owners.held_locks() if self._lock_owners is not None else (),
            answers=with_blocked_rows(
                sql_answers.answers, self._lock_owners.blocked_rows if self._lock_owners is not None else ()
            ),
            host=self._host.rates(),
            missing=missing | sql_answers.missing,
        )

    def _open_probes(self) -> ProbesCollector | None:
        if not self._sources.probes:
            return None
        every = self._sources.all_probes
        return ProbesCollector(
            self._target,
            metrics=None if every else metrics_read(default_rules()),
            budget=_BUDGET_OF_ALL if every else _BUDGET_OF_READ,
            kinds=self._snapshots.kinds,
            attach_soon=True,
            attach_on=self._attach_on,
        )

    def _attach_on(self, attach: Callable[[], None], delay_s: float) -> None:
        """Attach the probes once a snapshot has shown which threads belong to clients.

        Until the kinds of threads are known, probes count each page as written by a client. The rates of
        sampled probes are extrapolated from the first interval in which they are attached.
        """

        def attach_after_snapshot() -> None:
            self._snapshots.wait_for_first()
            attach()

        on_a_thread(attach_after_snapshot, delay_s)

    def _collectors(self) -> list[Collector]:
        target = self._target
        every: list[Collector] = [
            ProcessCollector(target, self._snapshots.kinds),
            cast("Collector", MemoryCollector(target)),
            _Toggles(target),
        ]
        if self._probes is not None:
            every.append(self._probes)
        if self._sources.sql:
            catalog = sql_catalog.default()
            connect = partial(self._connect, unanswered=Unanswered())
            every.append(SqlCollector(connect, catalog, target.flavour, target.version, _SQL_TIMEOUT_S))
        return every

    def _connect(self, timeout_s: float = _SQL_TIMEOUT_S, unanswered: Unanswered | None = None) -> Connection:
        timeout_s = slowness.scaled(timeout_s)
        return sql.connect(
            self._target,
            self._sources.defaults_file,
            self._sources.user,
            timeout_s,
            unanswered=unanswered or self._unanswered,
        )

    def query_locks(self) -> SqlAnswers:
        """Run the SQL queries (lock owners, transactions, process list, …) and ``Sources.also``.

        All of them have short timeouts.
        """
        sql_answers = self._query_all()
        if self._sources.also is not None:
            self._sources.also(self._connect, self._row_lock_waiters())
        return sql_answers

    def _query_all(self) -> SqlAnswers:
        return query_all(self._target, self._connect, self._row_lock_waiters())

    def _row_lock_waiters(self) -> int:
        """Return the number of threads that waited for row locks in the last snapshot."""
        snapshots = self._snapshots.history.since(time.time() - _RECENT_S)
        return snapshots[-1].threads.get((CLIENT, "row_lock"), 0) if snapshots else 0

    def _disabled(self) -> dict[str, MissingSource]:
        words = {"sql": "--no-sql", "probes": "--no-probes"}
        return {
            name: MissingSource("unsupported", f"disabled by {option}")
            for name, option in words.items()
            if not getattr(self._sources, name)
        }

    def _with_threads(self, sql_answers: SqlAnswers) -> tuple[ConnectionActivity, ...]:
        """Return the statements with thread ids, from SQL or else from the server's memory."""
        sessions = self._lock_owners.sessions if self._lock_owners is not None else ()
        # With a thread pool, a connection without a statement keeps the id of the thread that served it last.
        shared = Counter(one.thread for one in sessions)
        served = {one.connection: one.thread for one in sessions if shared[one.thread] == 1}
        if not sql_answers.statements:
            return tuple(
                ConnectionActivity(one.connection, "", "", "", "", 0, one.text, served.get(one.connection))
                for one in sessions
            )
        threads = self._threads()
        return tuple(
            replace(one, tid=threads.get(one.connection) or served.get(one.connection))
            for one in sql_answers.statements
        )

    def _threads(self) -> dict[int, int]:
        """Return ``{connection id: OS thread id}`` from SQL.

        The result is empty if SQL fails or the server does not report OS thread ids (MySQL before 5.7).
        """
        try:
            connection = self._connect()
            try:
                return {one.connection_id: tid for tid, one in sql.queries(self._target, connection).items()}
            finally:
                connection.abandon()
        except InnoscopeError:
            return {}


def _with_remedy(missing: MissingSource, sql_answers: SqlAnswers) -> MissingSource:
    """Return the error of a query that failed for the same reason, because that error includes a remedy.

    Return ``missing`` unchanged if there is no such query.
    """
    same = (one for one in sql_answers.missing.values() if one.remedy and one.reason == missing.reason)
    query = next(same, None)
    if query is None:
        return missing
    return replace(query, words=query.words.removesuffix(f" ({query.remedy})"))


class _Toggles:
    """A collector that reads the status file of `innoscope toggle`."""

    name = "toggles"
    timeout = 0.5

    def __init__(self, target: Target) -> None:
        self._target, self._file = target, TogglesFile()

    def collect(self) -> tuple[Sample, ...]:
        self._file.read()
        return self._file.outcome(self._target).samples
