"""The numbers that rules ask for, by name. Pure functions of the evidence.

========================  ==========================================================================
``threads.CLASS``         threads that serve clients in this wait class, mean of all looks
``background.CLASS``      the server's own threads in this wait class, mean
``applier.CLASS``         a replica's applying threads in this wait class, mean; ``busy``: at work
``active``                threads that serve clients and have something to do, mean
``share.CLASS``           threads.CLASS as a share of active
``growth.CLASS``          threads.CLASS in the later half of the looks minus those in the first half
``last.``, ``max.``, ``min.METRIC``  a gauge: its last, highest, lowest value
``rate.METRIC``           a counter's growth a second; of a histogram, observations a second
``load.METRIC``           seconds observed by a histogram each second: 1 is one thread all the time
``mean.METRIC``           a histogram's mean, seconds
``p99.METRIC``            its 99th percentile, seconds (upper bound of the bucket)
``fact.NAME``             what ``facts.py`` makes of the server's answers
``host.NAME``             what ``host.py`` tells of the host
========================  ==========================================================================

METRIC is a name of metrics.yaml, with ``.LABEL`` for one series of a labelled one; without it, of a labelled
counter, all are added up. What cannot be told raises Unknown, with the source that would have told it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from innoscope.common.samples import Histogram
from innoscope.diagnose import facts
from innoscope.diagnose.facts import AT_REST
from innoscope.diagnose.process_list import told_classes
from innoscope.diagnose.unavailable import Unknown
from innoscope.metrics.registry import default
from innoscope.sampling.snapshot_history import APPLIER, CLIENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from innoscope.diagnose.evidence import Evidence

#: Wait classes of a replica's thread that waits for the source or for others of its kind.
_NO_APPLYING: Final = AT_REST | {"replication", "other", "network_send"}
_NS: Final = 1e9


class Signals:
    """The signals of one evidence, each worked out once."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self._known: dict[str, float | Unknown] = {}

    def __getitem__(self, name: str) -> float:
        """The number. Raises Unknown."""
        if name not in self._known:
            try:
                self._known[name] = self._work_out(name)
            except Unknown as error:
                self._known[name] = error
        known = self._known[name]
        if isinstance(known, Unknown):
            raise known
        return known

    def get(self, name: str, default: float = 0.0) -> float:
        """The number, or what stands for it where it is not known."""
        try:
            return self[name]
        except Unknown:
            return default

    def _work_out(self, name: str) -> float:
        kind, _, rest = name.partition(".")
        return _KINDS[kind](self.evidence, rest)


def is_signal(name: str) -> bool:
    """Whether there is such a kind of signal, and such a metric."""
    kind, _, rest = name.partition(".")
    if kind not in _KINDS:
        return False
    if kind == "fact":
        return rest in facts.FACTS
    return kind not in OF_METRICS or rest.partition(".")[0] in default()


def _threads(evidence: Evidence, wait: str) -> float:
    return _mean(evidence, wait, clients=True)


def _background(evidence: Evidence, wait: str) -> float:
    return _mean(evidence, wait, clients=False)


def _applier(evidence: Evidence, wait: str) -> float:
    found = sum(
        count
        for look in evidence.looks
        for (kind, seen), count in look.threads.items()
        if kind == APPLIER and (seen == wait or (wait == "busy" and seen not in _NO_APPLYING))
    )
    return found / _looks(evidence)


def _mean(evidence: Evidence, wait: str, *, clients: bool) -> float:
    if blind(evidence) and not (clients and wait in told_classes()):
        raise Unknown("looks", evidence.missing["looks"])
    return evidence.threads(clients=clients)[wait] / _looks(evidence)


def blind(evidence: Evidence) -> bool:
    """Whether the process list stands for looks at threads: it tells some wait classes of clients only."""
    return bool(evidence.looks) and "looks" in evidence.missing


def _looks(evidence: Evidence) -> int:
    if not evidence.looks:
        raise Unknown("looks", evidence.missing.get("looks"))
    return len(evidence.looks)


def _active(evidence: Evidence, _: str) -> float:
    counts = evidence.threads(clients=True)
    return sum(count for wait, count in counts.items() if wait not in AT_REST) / _looks(evidence)


def _share(evidence: Evidence, wait: str) -> float:
    active = _active(evidence, "")
    return _threads(evidence, wait) / active if active else 0.0


def _growth(evidence: Evidence, wait: str) -> float:
    middle = _looks(evidence) // 2
    if not middle:
        return 0.0
    counts = [look.threads.get((CLIENT, wait), 0) for look in evidence.looks]
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
    """Without observations there is no mean."""
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
    """The keys that are meant: this one, or all labels of it."""
    return (key, *(f"{key}.{label}" for label in evidence.labels(key)))


def _no_number(evidence: Evidence, key: str) -> Unknown:
    """Which of the metric's sources is to blame: the first that failed, else none has it on this server."""
    sources = default()[key.partition(".")[0]].sources
    for source in sources:
        if source in evidence.missing:
            return Unknown(source, evidence.missing[source])
    return Unknown(" or ".join(sources), None)


def _fact(evidence: Evidence, name: str) -> float:
    return facts.FACTS[name](evidence)


def _host(evidence: Evidence, name: str) -> float:
    if name not in evidence.host:
        raise Unknown("host", None)
    return evidence.host[name]


#: Kinds of signals whose names go on with a metric, and with a wait class.
OF_METRICS: Final = frozenset({"last", "max", "min", "rate", "load", "mean", "p99"})
OF_CLASSES: Final = frozenset({"threads", "background", "share", "growth"})
_KINDS: Final[dict[str, Callable[[Evidence, str], float]]] = {
    "threads": _threads,
    "background": _background,
    "applier": _applier,
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
