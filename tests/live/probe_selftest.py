"""Compare a server's probes with the server's counters, under loads that cause many events of each kind."""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from live.watched import Watched
from servers import Server
from waiting import until
from workloads import Fsync, TableScan, UpdateStorm

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: Minimum share of the events that a probe must count; below that, the table says ``under-counts``.
FLOOR: Final = 0.98
_FAMILIES: Final = ("flush", "read_ahead", "fsync", "read", "redo", "row_lock")


@dataclass(frozen=True, slots=True)
class Event:
    """An event, the metric that counts it, and the server's counters to compare it with.

    The server's count is the sum of ``counters`` minus the sum of ``minus``.
    """

    name: str
    metric: str
    counters: tuple[str, ...]
    minus: tuple[str, ...] = ()
    more: str = ""  #: why the probe may count more than the server


READS = Event(
    "reads",
    "read_seconds",
    ("Innodb_buffer_pool_reads",),
    more="the server does not count reads of file headers and of other files",
)
#: ``READS`` for MariaDB 10.6 and newer, whose counter includes pages read ahead.
READS_LATE = replace(READS, minus=("Innodb_buffer_pool_read_ahead", "Innodb_buffer_pool_read_ahead_rnd"))
PAGES = Event("pages written", "flushed_pages", ("Innodb_pages_written",))
READ_AHEAD = Event("read-ahead", "read_ahead_pages", ("Innodb_buffer_pool_read_ahead",))
FSYNCS = Event(
    "fsyncs",
    "fsync_seconds",
    ("Innodb_data_fsyncs",),
    more="the server does not count the fsyncs of the SQL layer",
)
COMMITS = Event(
    "commits",
    "redo_write_seconds",
    ("Com_insert",),
    more="the page cleaner and the master thread also call the probed function, "
    "and MariaDB calls it several times per commit",
)
ROW_LOCKS = Event(
    "row-lock waits",
    "row_lock_wait_seconds",
    ("Innodb_row_lock_waits",),
    more="the server does not count calls that find the lock free",
)
EVENTS: Final = (READS, PAGES, READ_AHEAD, FSYNCS, COMMITS, ROW_LOCKS)


@dataclass(frozen=True, slots=True)
class Result:
    """The counts of one event; ``probed`` is None if no probe for it is attached."""

    event: Event
    probed: float | None
    counted: int

    @property
    def share(self) -> float | None:
        """Return the probe's count as a share of the server's count; None without a probe."""
        return None if self.probed is None else self.probed / max(self.counted, 1)

    @property
    def words(self) -> str:
        """Return the result as a cell of the table."""
        if self.probed is None or self.share is None:
            return "no probe"
        under = "under-counts: " if self.share < FLOOR else ""
        return f"{under}{self.share:.1%} of {self.counted:,}"


def compare(name: str) -> list[Result]:
    """Start a server, run the loads, and return the results for all events."""
    results: list[Result] = []
    reads = READS_LATE if name.startswith("mariadb") and not name.startswith("mariadb-10.5") else READS
    with (
        Server(name, options=(*TableScan.server_options, *Fsync.server_options)) as server,
        closing(_Comparison(server)) as comparison,
    ):
        with comparison.of(results, PAGES, READ_AHEAD, reads), TableScan(server, 2):
            watched = comparison.watched
            before = watched.status(TableScan.counter)
            until(lambda: watched.status(TableScan.counter) - before > 4000, within_s=120)
        with comparison.of(results, COMMITS, FSYNCS), Fsync(server, 2) as load:
            until(lambda: load.throughput() > 1000, within_s=120)
        with comparison.of(results, ROW_LOCKS), UpdateStorm(server, 30):
            [waits] = ROW_LOCKS.counters
            begin = watched.status(waits)
            until(lambda: watched.status(waits) - begin > 500, within_s=120)
    order = [event.name for event in EVENTS]
    return sorted(results, key=lambda result: order.index(result.event.name))


class _Comparison:
    def __init__(self, server: Server) -> None:
        self.watched = Watched(server, *_FAMILIES)
        self._fed = {metric for point in self.watched.points() for metric in self._feeds(point.name)}

    def _feeds(self, probe: str) -> Iterator[str]:
        target = self.watched.collector.start_once().attachment.target
        for one in self.watched.points():
            if one.name == probe:
                yield from one.placed.probe.fed(target.flavour, target.version)

    def close(self) -> None:
        """Detach the probes."""
        self.watched.collector.close()

    @contextmanager
    def of(self, results: list[Result], *events: Event) -> Iterator[None]:
        """Append the results of ``events`` to ``results`` after the block, once the server is idle again."""
        before = self._counts(events)
        yield
        self.watched.settled(
            lambda: sum(map(self.watched.status, ("Innodb_pages_written", "Innodb_pages_read")))
        )
        after = self._counts(events)
        for event, (probed, counted), (probed_then, counted_then) in zip(events, after, before, strict=True):
            known = event.metric in self._fed
            results.append(Result(event, probed - probed_then if known else None, counted - counted_then))

    def _counts(self, events: Sequence[Event]) -> list[tuple[float, int]]:
        """Return the counts of the probes and of the server at a time when the server's do not change."""
        while True:
            counted = [self._counted(event) for event in events]
            probed = [self.watched.probed(event.metric) for event in events]
            if [self._counted(event) for event in events] == counted:
                return list(zip(probed, counted, strict=True))

    def _counted(self, event: Event) -> int:
        return sum(map(self.watched.status, event.counters)) - sum(map(self.watched.status, event.minus))
