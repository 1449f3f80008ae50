"""Define the records that hold a few seconds of observations of one server.

Every kind of evidence is optional. This module does no I/O and does not read the clock.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping  # noqa: TC003 - msgspec evaluates the annotations
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from innoscope.common.samples import Histogram, Value
from innoscope.memory.locks.held import HeldLock  # noqa: TC001 - msgspec evaluates the annotations
from innoscope.sampling.snapshot_history import CLIENT, ObservedStack, SnapshotSummary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from innoscope.common.samples import Sample
    from innoscope.target.model import Target

#: Functions that compute values from the evidence, by name. They may raise Unknown.
FactFunctions: TypeAlias = "Mapping[str, Callable[[Evidence], float]]"

#: Number of hexadecimal digits to show of a digest. `innoscope history --where digest=` accepts this many.
_DIGEST: Final = 12
#: Wait classes of threads that are idle or running SLEEP().
AT_REST: Final = frozenset({"idle", "user_sleep", "background_idle"})


@dataclass(frozen=True, slots=True)
class MetricReadings:
    """All metric values at Unix time ``at``, keyed by ``metric`` or ``metric.label`` as in metrics.yaml."""

    at: float
    values: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class OnFile:
    """The number of threads (``count``) that read, wrote or synced one file, summed over all snapshots.

    ``wait`` is the wait class of these threads. ``path`` is relative to the data directory if the file is in
    it.
    """

    wait: str
    path: str
    count: int


def with_digest(text: str, digest: str | None) -> str:
    """Return a statement's text, and the first digits of its digest."""
    return f"{text} (digest {digest[:_DIGEST]})" if digest else text


@dataclass(frozen=True, slots=True)
class ConnectionActivity:
    """One connection's activity, from the process list or from the server's memory.

    ``text`` is the connection's statement without literals.

    ``digest`` is the id under which the history stores the statement (docs/digests.md), if it is known.
    """

    connection: int
    user: str
    host: str
    command: str
    state: str
    seconds: int
    text: str
    tid: int | None = None
    digest: str | None = None

    @property
    def named(self) -> str:
        """Return the text, and the first digits of the digest."""
        return with_digest(self.text, self.digest)


@dataclass(frozen=True, slots=True)
class MissingSource:
    """The reason why a source has no data. ``reason`` is the category, ``words`` is the message."""

    reason: str
    words: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """All observations of one server.

    - ``server`` describes the server (version, pid, …).
    - ``readings`` holds the metric values over time.
    - ``snapshots`` holds summaries of the snapshots, and ``seen`` the distinct stacks in them.
    - ``owners`` holds the lock owners.
    - ``answers`` holds the rows that each SQL query returned, as mappings from column to value. If SQL does
      not return the waits for row locks, they are read from memory.
    - ``host`` holds the rates and ratios that host.py measured on the host.
    - ``missing`` maps each missing source to the reason.
      Sources are collector names, ``looks`` (the snapshots) and ``sql.QUERY``.

    The metadata ``key`` of a field is its key in incident files, if it differs from the field's name.
    """

    server: Mapping[str, str]
    begun: float
    ended: float
    readings: tuple[MetricReadings, ...] = field(default=(), metadata={"key": "snapshots"})
    snapshots: tuple[SnapshotSummary, ...] = field(default=(), metadata={"key": "looks"})
    seen: tuple[ObservedStack, ...] = ()
    files: tuple[OnFile, ...] = ()
    statements: tuple[ConnectionActivity, ...] = ()
    owners: tuple[HeldLock, ...] = ()
    answers: Mapping[str, tuple[Mapping[str, str], ...]] = field(default_factory=dict)
    host: Mapping[str, float] = field(default_factory=dict)
    missing: Mapping[str, MissingSource] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Return the observation time in seconds."""
        return self.ended - self.begun

    def threads(self, *, clients: bool) -> Counter[str]:
        """Return the number of client threads, or of all other threads, by wait class.

        The counts are summed over all snapshots.
        """
        found: Counter[str] = Counter()
        for snapshot in self.snapshots:
            for (kind, wait), count in snapshot.threads.items():
                if (kind == CLIENT) == clients:
                    found[wait] += count
        return found

    def active_clients(self) -> int:
        """Return the number of client threads outside the classes AT_REST, summed over all snapshots."""
        counts = self.threads(clients=True)
        return sum(count for wait, count in counts.items() if wait not in AT_REST)

    def gauge(self, key: str) -> list[float]:
        """Return a gauge's values in all readings that contain it."""
        values = (reading.values.get(key) for reading in self.readings)
        return [float(value) for value in values if isinstance(value, int | float)]

    def change(self, key: str) -> tuple[float, float] | None:
        """Return ``(growth, seconds)`` of a counter between the first and the last reading that contain it.

        Return None if fewer than two readings contain it, or if it is a histogram.
        """
        ends = self._ends(key)
        if ends is None:
            return None
        (first, before), (last, after) = ends
        if isinstance(before, Histogram) or isinstance(after, Histogram):
            return None
        return max(0.0, after - before), last - first

    def histogram(self, key: str) -> tuple[Histogram, float] | None:
        """Return ``(growth, seconds)`` of a histogram, as ``change`` does for a counter."""
        ends = self._ends(key)
        if ends is None:
            return None
        (first, before), (last, after) = ends
        if not isinstance(before, Histogram) or not isinstance(after, Histogram):
            return None
        return _minus(after, before), last - first

    def labels(self, metric: str) -> list[str]:
        """Return the sorted label values of a metric's series."""
        head = f"{metric}."
        return sorted(
            {
                key.removeprefix(head)
                for reading in self.readings
                for key in reading.values
                if key.startswith(head)
            }
        )

    def _ends(self, key: str) -> tuple[tuple[float, Value], tuple[float, Value]] | None:
        have = [(one.at, one.values[key]) for one in self.readings if key in one.values]
        return (have[0], have[-1]) if len(have) > 1 and have[-1][0] > have[0][0] else None


def described(target: Target) -> dict[str, str]:
    """Return the description of a server for ``Evidence.server``."""
    return {
        "flavour": target.flavour,
        "version": target.version_text or ".".join(map(str, target.version)),
        "pid": str(target.pid),
        "start_time": str(target.start_time),
        "build_id": target.build_id or "",
        "socket": target.socket or "",
        "symbols": target.symbols,
    }


def keyed(samples: Iterable[Sample]) -> dict[str, Value]:
    """Return the samples' values, keyed by ``metric`` or ``metric.label``."""
    return {sys.intern(".".join((sample.metric, *sample.labels))): sample.value for sample in samples}


def _minus(later: Histogram, earlier: Histogram) -> Histogram:
    """Return a histogram's growth. Buckets that decreased, as estimates of sampled probes can, become 0."""
    missing = (0,) * (len(later.buckets) - len(earlier.buckets))
    buckets = tuple(
        max(0, after - before)
        for after, before in zip(later.buckets, earlier.buckets + missing, strict=False)
    )
    return Histogram(buckets, max(0, later.total_ns - earlier.total_ns))
