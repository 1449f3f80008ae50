"""Compute the signals that rules use, by name. All functions depend only on the evidence.

========================  ==========================================================================
``threads.CLASS``         client threads in this wait class, mean over all snapshots
``background.CLASS``      the server's own threads in this wait class, mean
``applier.CLASS``         a replica's applier threads in this wait class, mean; ``busy``: any active class
``doing.ACTIVITY``        threads in this activity (activities.yaml), mean
``lasting.ACTIVITY``      longest time for which consecutive snapshots show a thread in this activity, seconds
``active``                client threads that are neither idle nor in SLEEP(), mean
``share.CLASS``           threads.CLASS as a share of active
``growth.CLASS``          threads.CLASS in the second half of the snapshots minus that in the first half
``last.``, ``max.``, ``min.METRIC``  a gauge: its last, highest, lowest value
``rate.METRIC``           a counter's growth per second; of a histogram, observations per second
``load.METRIC``           a histogram's sum of durations, per second: 1 means one thread all the time
``mean.METRIC``           a histogram's mean, seconds
``p99.METRIC``            a histogram's 99th percentile, seconds (upper bound of the bucket)
``fact.NAME``             computed by ``facts/`` from all evidence
``host.NAME``             read from the host by ``host.py``
``unexplained.threads``   client threads in wait classes that no reported finding covers, mean
``unexplained.share``     the same threads as a share of active
========================  ==========================================================================

METRIC is a name in metrics.yaml, with ``.LABEL`` for one series of a labeled metric. Without ``.LABEL``,
counters and histograms are summed over all series. Reading a signal that has no value raises Unknown, which
names the missing source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from innoscope.common.samples import Histogram
from innoscope.diagnose.answers import snapshots
from innoscope.diagnose.evidence import AT_REST
from innoscope.diagnose.facts.registry import FACTS
from innoscope.diagnose.process_list import known_classes
from innoscope.diagnose.unavailable import Unknown
from innoscope.metrics.registry import default
from innoscope.sampling.activities import default_activities
from innoscope.sampling.snapshot_history import APPLIER, CLIENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from innoscope.diagnose.evidence import Evidence

#: Wait classes of applier threads that are idle, or waiting for the source or for each other.
_APPLIER_IDLE: Final = AT_REST | {"replication", "other", "network_send"}
_NS: Final = 1e9


class Signals:
    """Computes signals from an ``Evidence`` object, each at most once.

    ``unexplained`` holds the wait classes for the signals ``unexplained.*``.
    """

    def __init__(self, evidence: Evidence, unexplained: frozenset[str] = frozenset()) -> None:
        self.evidence = evidence
        self.unexplained = unexplained
        self._known: dict[str, float | Unknown] = {}

    def __getitem__(self, name: str) -> float:
        """Return the signal's value. Raise Unknown if it has none."""
        if name not in self._known:
            try:
                self._known[name] = self._compute(name)
            except Unknown as error:
                self._known[name] = error
        known = self._known[name]
        if isinstance(known, Unknown):
            raise known
        return known

    def get(self, name: str, default: float = 0.0) -> float:
        """Return the signal's value, or the default if it is unknown."""
        try:
            return self[name]
        except Unknown:
            return default

    def _compute(self, name: str) -> float:
        kind, _, rest = name.partition(".")
        if kind == UNEXPLAINED:
            return sum(self[f"{rest}.{wait}"] for wait in sorted(self.unexplained))
        return _KINDS[kind](self.evidence, rest)


def is_signal(name: str) -> bool:
    """Return whether the signal's kind exists, and the metric, fact or activity that it names."""
    kind, _, rest = name.partition(".")
    if kind == UNEXPLAINED:
        return rest in ("threads", "share")
    if kind not in _KINDS:
        return False
    if kind == "fact":
        return rest in FACTS
    if kind in OF_ACTIVITIES:
        return rest in default_activities()
    return kind not in OF_METRICS or rest.partition(".")[0] in default()


def _threads(evidence: Evidence, wait: str) -> float:
    return _mean(evidence, wait, clients=True)


def _background(evidence: Evidence, wait: str) -> float:
    return _mean(evidence, wait, clients=False)


def _applier(evidence: Evidence, wait: str) -> float:
    found = sum(
        count
        for snapshot in evidence.snapshots
        for (kind, seen), count in snapshot.threads.items()
        if kind == APPLIER and (seen == wait or (wait == "busy" and seen not in _APPLIER_IDLE))
    )
    return found / _snapshot_count(evidence)


def _doing(evidence: Evidence, activity: str) -> float:
    count = sum(len(snapshot.doing.get(activity, ())) for snapshot in snapshots(evidence))
    return count / len(evidence.snapshots)


def _lasting(evidence: Evidence, activity: str) -> float:
    longest = 0.0
    since: dict[int, float] = {}
    for snapshot in snapshots(evidence):
        since = {tid: since.get(tid, snapshot.at) for tid in snapshot.doing.get(activity, ())}
        longest = max([longest, *(snapshot.at - begun for begun in since.values())])
    return longest


def _mean(evidence: Evidence, wait: str, *, clients: bool) -> float:
    if without_stacks(evidence) and not (clients and wait in known_classes()):
        raise Unknown("looks", evidence.missing["looks"])
    return evidence.threads(clients=clients)[wait] / _snapshot_count(evidence)


def without_stacks(evidence: Evidence) -> bool:
    """Return whether the process list is used instead of snapshots.

    The process list shows only some wait classes, and only for client threads.
    """
    return bool(evidence.snapshots) and "looks" in evidence.missing


def _snapshot_count(evidence: Evidence) -> int:
    if not evidence.snapshots:
        raise Unknown("looks", evidence.missing.get("looks"))
    return len(evidence.snapshots)


def _active(evidence: Evidence, _: str) -> float:
    return evidence.active_clients() / _snapshot_count(evidence)


def _share(evidence: Evidence, wait: str) -> float:
    active = _active(evidence, "")
    return _threads(evidence, wait) / active if active else 0.0


def _growth(evidence: Evidence, wait: str) -> float:
    middle = _snapshot_count(evidence) // 2
    if not middle:
        return 0.0
    counts = [snapshot.threads.get((CLIENT, wait), 0) for snapshot in evidence.snapshots]
    return sum(counts[-middle:]) / middle - sum(counts[:middle]) / middle


def _last(evidence: Evidence, key: str) -> float:
    return _gauge(evidence, key)[-1]


def _gauge(evidence: Evidence, key: str) -> list[float]:
    values = evidence.gauge(key)
    if not values:
        raise _no_number(evidence, key)
    return values


def _rate(evidence: Evidence, key: str) -> float:
    changes = [change for one in _series(evidence, key) if (change := evidence.change(one)) is not None]
    if changes:
        return sum(growth / seconds for growth, seconds in changes)
    histogram, seconds = _histogram(evidence, key)
    return histogram.count / seconds


def _load(evidence: Evidence, key: str) -> float:
    histogram, seconds = _histogram(evidence, key)
    return histogram.total_ns / _NS / seconds


def _mean_time(evidence: Evidence, key: str) -> float:
    histogram = _observed(evidence, key)
    return histogram.total_ns / _NS / histogram.count


def _p99(evidence: Evidence, key: str) -> float:
    histogram = _observed(evidence, key)
    below, wanted = 0, 0.99 * histogram.count
    for power, count in enumerate(histogram.buckets):
        below += count
        if count and below >= wanted:
            return float(2 ** (power + 1)) / _NS
    return 0.0


def _observed(evidence: Evidence, key: str) -> Histogram:
    """Return the histogram of ``key``, summed over its series. Raise Unknown if it has no observations."""
    histogram, _ = _histogram(evidence, key)
    if not histogram.count:
        raise Unknown(key, None)
    return histogram


def _histogram(evidence: Evidence, key: str) -> tuple[Histogram, float]:
    found = [one for name in _series(evidence, key) if (one := evidence.histogram(name)) is not None]
    if not found:
        raise _no_number(evidence, key)
    total = Histogram((), 0)
    for histogram, _ in found:
        total = total.plus(histogram)
    return total, max(seconds for _, seconds in found)


def _series(evidence: Evidence, key: str) -> Iterable[str]:
    """Return this key, and the keys of all series of the metric if it is labeled."""
    return (key, *(f"{key}.{label}" for label in evidence.labels(key)))


def _no_number(evidence: Evidence, key: str) -> Unknown:
    """Return an Unknown error for the first source that failed.

    If no source failed, the server does not provide the metric.
    """
    sources = default()[key.partition(".")[0]].sources
    for source in sources:
        if source in evidence.missing:
            return Unknown(source, evidence.missing[source])
    return Unknown(" or ".join(sources), None)


def _fact(evidence: Evidence, name: str) -> float:
    return FACTS[name](evidence)


def _host(evidence: Evidence, name: str) -> float:
    if name not in evidence.host:
        raise Unknown("host", None)
    return evidence.host[name]


#: The kind of signals that depend on the findings reported so far.
UNEXPLAINED: Final = "unexplained"
#: Kinds of signals that are followed by a metric, as in ``rate.redo_written_bytes``.
OF_METRICS: Final = frozenset({"last", "max", "min", "rate", "load", "mean", "p99"})
#: Kinds of signals that are followed by a wait class. ``applier`` is omitted, because ``busy`` may follow it.
OF_CLASSES: Final = frozenset({"threads", "background", "share", "growth"})
#: Kinds of signals that are followed by an activity.
OF_ACTIVITIES: Final = frozenset({"doing", "lasting"})
_KINDS: Final[dict[str, Callable[[Evidence, str], float]]] = {
    "threads": _threads,
    "background": _background,
    "applier": _applier,
    "doing": _doing,
    "lasting": _lasting,
    "active": _active,
    "share": _share,
    "growth": _growth,
    "last": _last,
    "max": lambda evidence, key: max(_gauge(evidence, key)),
    "min": lambda evidence, key: min(_gauge(evidence, key)),
    "rate": _rate,
    "load": _load,
    "mean": _mean_time,
    "p99": _p99,
    "fact": _fact,
    "host": _host,
}
