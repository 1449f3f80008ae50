"""Find the significant differences between the two sides of a comparison. All functions are pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from innoscope.diagnose.evidence import AT_REST
from innoscope.diagnose.incident.diff_inputs import Mean, all_keys, mean_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from innoscope.diagnose.incident.diff_inputs import DiffSide, MetricSeries, StackKey, WaitKey

#: Minimum difference between two mean thread counts, in standard errors.
MIN_ERRORS: Final = 4.0
#: Minimum difference between two mean thread counts, in threads.
MIN_THREADS: Final = 1.0
#: Minimum difference between two mean thread counts, as a share of the larger one.
MIN_SHARE: Final = 0.3
#: Minimum factor between the two sides' means of a metric's values. The ranges of these values must not
#: overlap either.
MIN_FACTOR: Final = 2.0
#: Minimum number of events on each side for the means of a histogram to be compared.
MIN_EVENTS: Final = 20
#: Minimum change of a level or a rate, by the suffix of the metric's name.
_LEAST: Final = {"_ratio": 0.1, "_seconds": 0.05, "_bytes": 1 << 20, "": 1.0}
#: Metrics that always change, or that are compared in other ways (wait classes as threads, variables by
#: name).
_NOT_COMPARED: Final = frozenset(
    {
        "threads", "thread_seconds", "thread_samples", "look_seconds", "uptime_seconds", "innodb_status",
        "innodb_variable", "memory_sql_difference", "mysqld_start_time_seconds", "collector_success",
        "collector_duration_seconds", "toggle_since_timestamp_seconds", "toggle_until_timestamp_seconds",
        "probe_attached", "probe_duty_ratio", "probe_overhead_ratio", "probe_hit_cost_seconds", "probe_hits",
        "probe_cost_seconds", "sql_up",
    }
)  # fmt: skip
#: Variables that the server itself changes.
_MOVING: Final = frozenset(
    {
        "gtid_executed", "gtid_purged", "gtid_current_pos", "gtid_binlog_pos", "gtid_binlog_state",
        "gtid_slave_pos", "wsrep_last_committed",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ThreadChange:
    """A change in the mean number of threads in a wait class, or with one stack if ``functions`` is set.

    ``functions`` is the stack, innermost function first.
    """

    clients: bool
    wait: str
    a: float
    b: float
    functions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MetricChange:
    """A change in a metric's series; ``kind`` is ``rate`` (per second), ``level``, or ``mean`` (seconds)."""

    series: str
    kind: str
    a: float
    b: float


@dataclass(frozen=True, slots=True)
class VariableChange:
    """A change to a server variable. A value is None if the side does not have the variable."""

    name: str
    a: str | None
    b: str | None


@dataclass(frozen=True, slots=True)
class FindingChange:
    """A finding that only one side has: ``new`` if only b has it, ``gone`` if only a has it.

    With ``new?`` and ``gone?``, the other side lacks the data to check for the finding.
    """

    name: str
    title: str
    change: str


@dataclass(frozen=True, slots=True)
class Differences:
    """The differences between two sides. ``notes`` lists what was not compared or is inexact."""

    findings: tuple[FindingChange, ...]
    waits: tuple[ThreadChange, ...]
    stacks: tuple[ThreadChange, ...]
    metrics: tuple[MetricChange, ...]
    variables: tuple[VariableChange, ...]
    notes: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.findings or self.waits or self.stacks or self.metrics or self.variables)


def compare(a: DiffSide, b: DiffSide) -> Differences:
    """Return the significant differences between two sides."""
    same = _same_build(a, b)
    return Differences(
        tuple(_findings(a, b)),
        tuple(_waits(a.waits, b.waits, a.snapshots, b.snapshots)),
        tuple(_stacks(a, b)) if same else (),
        tuple(_metrics(a.series or {}, b.series or {})),
        tuple(_variables(a.variables, b.variables, same=same)),
        tuple(_notes(a, b, same=same)),
    )


def _same_build(a: DiffSide, b: DiffSide) -> bool:
    return all(a.server.get(key) == b.server.get(key) for key in ("flavour", "version"))


def _notes(a: DiffSide, b: DiffSide, *, same: bool) -> Iterator[str]:
    if not same:
        yield "the servers are of different versions: their stacks are not compared"
    if not a.snapshots or not b.snapshots:
        yield f"{(a if not a.snapshots else b).path} has no snapshots: threads are not compared"
    elif min(a.snapshots, b.snapshots) == 1:
        yield "a single snapshot shows one moment only: only large differences in threads are reported"
    for name, words in (("series", "metrics"), ("variables", "variables"), ("findings", "findings")):
        without = [side.path for side in (a, b) if getattr(side, name) is None]
        if len(without) == 1:
            yield f"{without[0]} has no {words}: they are not compared"


def _findings(a: DiffSide, b: DiffSide) -> Iterator[FindingChange]:
    if a.findings is None or b.findings is None:
        return
    before, after = ({finding.name for finding in side.findings or ()} for side in (a, b))
    for finding in b.findings:
        if finding.name not in before:
            change = "new?" if finding.name in a.undecided else "new"
            yield FindingChange(finding.name, finding.title, change)
    for finding in a.findings:
        if finding.name not in after:
            change = "gone?" if finding.name in b.undecided else "gone"
            yield FindingChange(finding.name, finding.title, change)


def _waits(
    a: Mapping[WaitKey, Mean], b: Mapping[WaitKey, Mean], snapshots_a: int, snapshots_b: int
) -> list[ThreadChange]:
    """Return the changed wait classes: active before idle, clients before others, then by size of change."""
    if not snapshots_a or not snapshots_b:
        return []
    found = [
        ThreadChange(key[0], key[1], before.mean, after.mean)
        for key in all_keys((a, b))
        if _differ(
            before := a.get(key, mean_of(0, snapshots_a)), after := b.get(key, mean_of(0, snapshots_b))
        )
    ]
    return sorted(found, key=lambda one: (one.wait in AT_REST, not one.clients, -abs(one.b - one.a)))


def _stacks(a: DiffSide, b: DiffSide) -> list[ThreadChange]:
    """Return the changed stacks of active threads, sorted: clients first, then by size of the change."""
    if not a.snapshots or not b.snapshots:
        return []
    keys: list[StackKey] = [key for key in all_keys((a.stacks, b.stacks)) if key[1] not in AT_REST]
    found = [
        ThreadChange(key[0], key[1], before.mean, after.mean, key[2])
        for key in keys
        if _differ(
            before := a.stacks.get(key, mean_of(0, a.snapshots)),
            after := b.stacks.get(key, mean_of(0, b.snapshots)),
        )
    ]
    return sorted(found, key=lambda one: (not one.clients, -abs(one.b - one.a)))


def _differ(a: Mean, b: Mean) -> bool:
    change = abs(b.mean - a.mean)
    return (
        change >= MIN_THREADS
        and change >= MIN_SHARE * max(a.mean, b.mean)
        and change >= MIN_ERRORS * math.hypot(a.error, b.error)
    )


def _metrics(a: Mapping[str, MetricSeries], b: Mapping[str, MetricSeries]) -> list[MetricChange]:
    """Return the changed metrics, largest factor first."""
    found = []
    for key in sorted(a.keys() & b.keys()):
        name, before, after = key.partition(" ")[0], a[key], b[key]
        if (
            name.partition(".")[0] not in _NOT_COMPARED
            and before.kind == after.kind
            and _moved(name, before, after)
        ):
            found.append(MetricChange(key, before.kind, before.middle, after.middle))
    return sorted(found, key=lambda one: (-_factor(one.a, one.b), one.series))


def _moved(name: str, a: MetricSeries, b: MetricSeries) -> bool:
    """Return whether the sides' values do not overlap and their means differ by the required minimum."""
    low, high = (a, b) if a.middle < b.middle else (b, a)
    if max(low.values) >= min(high.values) or not _factor(low.middle, high.middle) >= MIN_FACTOR:
        return False
    if a.kind == "mean":
        return min(a.events, b.events) >= MIN_EVENTS
    change = high.middle - low.middle
    return change >= _least(name) and change >= MIN_ERRORS * math.hypot(a.error, b.error)


def _least(name: str) -> float:
    metric = name.partition(".")[0]
    return next(least for end, least in _LEAST.items() if metric.endswith(end))


def _factor(a: float, b: float) -> float:
    low, high = sorted((abs(a), abs(b)))
    return high / low if low else math.inf


def _variables(
    a: Mapping[str, str] | None, b: Mapping[str, str] | None, *, same: bool
) -> Iterator[VariableChange]:
    """Yield the changed variables. If the versions differ, compare only variables that both servers have."""
    if a is None or b is None:
        return
    names = a.keys() | b.keys() if same else a.keys() & b.keys()
    for name in sorted(names - _MOVING):
        if a.get(name) != b.get(name):
            yield VariableChange(name, a.get(name), b.get(name))
