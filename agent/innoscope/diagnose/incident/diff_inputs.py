"""Read one side of a comparison from a dump, recording, profile or incident file, in a common form."""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import msgspec

from innoscope.common import sanitize
from innoscope.common.errors import BadFile
from innoscope.common.samples import Histogram
from innoscope.common.typed import decode_untrusted
from innoscope.diagnose.incident.files import load
from innoscope.diagnose.verdict import judge
from innoscope.metrics.collectors.kinds import default_kinds
from innoscope.metrics.registry import default
from innoscope.sampling.model import Frame
from innoscope.sampling.recording import Recording
from innoscope.sampling.snapshot_history import CLIENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from innoscope.diagnose.evidence import Evidence
    from innoscope.diagnose.incident.model import Capture
    from innoscope.diagnose.verdict import Finding

#: Number of innermost functions of each stack that are compared.
DEPTH: Final = 8
#: Extra snapshots beyond this do not reduce the error, because consecutive snapshots see the same threads.
_INDEPENDENT: Final = 20
_HEAD_BYTES: Final = 4096
_PROFILE_BYTES: Final = 64 << 20
_NS: Final = 1e9

#: (true for a client thread, wait class)
WaitKey = tuple[bool, str]
#: (true for a client thread, wait class, innermost functions)
StackKey = tuple[bool, str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean number of threads per snapshot, and its standard error."""

    mean: float
    error: float


@dataclass(frozen=True, slots=True)
class MetricSeries:
    """A metric over time: its rate in each interval, or its value in each reading.

    ``kind`` is ``rate`` (per second), ``level``, or ``mean`` (of a histogram, in seconds). ``events`` is the
    total count; 0 for a level. ``error`` is the standard error due to the finite number of events.
    """

    kind: str
    values: tuple[float, ...]
    events: float = 0.0
    error: float = 0.0

    @property
    def middle(self) -> float:
        """Return the mean of the values."""
        return sum(self.values) / len(self.values)


@dataclass(frozen=True, slots=True)
class DiffSide:
    """The data of one side. A field is None if the file does not contain its data."""

    path: str
    server: Mapping[str, str]
    begun: float
    ended: float
    snapshots: int
    waits: Mapping[WaitKey, Mean]
    stacks: Mapping[StackKey, Mean]
    series: Mapping[str, MetricSeries] | None = None
    variables: Mapping[str, str] | None = None
    findings: tuple[Finding, ...] | None = None
    #: Findings that could not be checked.
    undecided: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Counted:
    """Thread counts: by wait class in each snapshot, and by stack over all snapshots."""

    snapshots: list[Counter[WaitKey]] = field(default_factory=list)
    stacks: Counter[StackKey] = field(default_factory=Counter)


class _Frame(msgspec.Struct, frozen=True):
    function: str | None
    module: str
    offset: int


class _Stack(msgspec.Struct, frozen=True):
    wait: str
    threads: int
    frames: list[_Frame]


class _Target(msgspec.Struct, frozen=True):
    flavour: str
    version_text: str
    pid: int


class _Profile(msgspec.Struct, frozen=True):
    """The part of a profile (docs/json.md) that is compared."""

    looks: int
    target: _Target
    started_at: float
    ended_at: float
    stacks: list[_Stack]


def open_side(path: Path, progress: Callable[[int], None] | None = None) -> DiffSide:
    """Read any supported file. Raise BadFile if it cannot be read or is damaged.

    For a dump or a recording, ``progress`` is called with the number of snapshots read so far.
    """
    head = _head(path)
    if b'"innoscope_incident"' in head[:100]:
        return of_capture(path, load(path))
    if b'"started_at"' in head and b'"innoscope_recording"' not in head and b'"taken_at"' not in head:
        return _of_profile(path)
    return _of_dumps(path, Recording(path, allow_headerless=True), progress)


def _head(path: Path) -> bytes:
    try:
        if not path.is_file():
            raise BadFile(f"{path} is not a regular file", remedy=f"ls -l {path}")
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            with gzip.open(raw) if packed else nullcontext(raw) as file:
                return file.read(_HEAD_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise BadFile(f"cannot read {path}: {error}", remedy=f"ls -l {path}") from error


def of_capture(path: Path, capture: Capture) -> DiffSide:
    """Return a side with the evidence of the incident. Raise BadFile if it is invalid."""
    return _of_evidence(str(path), capture.evidence, _variables(capture))


def before_of(path: Path, capture: Capture) -> DiffSide:
    """Return a side with the evidence from before the stall. Raise BadFile if the file has none."""
    if capture.before is None:
        raise BadFile(
            f"{path} has no evidence from before the stall",
            remedy=f"innoscope diff HEALTHY {path}, or innoscope watch",
        )
    return _of_evidence(f"{path} (before)", capture.before, _variables(capture))


def _variables(capture: Capture) -> Mapping[str, str] | None:
    """Return the variables that SQL returned. Values from memory are not used: their format differs."""
    return None if "variables" in capture.missing else capture.variables or None


def _of_evidence(path: str, evidence: Evidence, variables: Mapping[str, str] | None) -> DiffSide:
    counted = _Counted()
    for snapshot in evidence.snapshots:
        found: Counter[WaitKey] = Counter()
        for (kind, wait), count in snapshot.threads.items():
            found[kind == CLIENT, wait] += count
        counted.snapshots.append(found)
    for seen in evidence.seen:
        counted.stacks[seen.kind == CLIENT, seen.wait, seen.functions[:DEPTH]] += seen.count
    try:
        verdict = judge(evidence)
        return DiffSide(
            path,
            evidence.server,
            evidence.begun,
            evidence.ended,
            len(counted.snapshots),
            _waits(counted.snapshots),
            _stacks(counted.stacks, len(counted.snapshots)),
            _series(evidence),
            variables,
            verdict.findings,
            frozenset(name for one in verdict.cannot_tell for name in one.findings),
        )
    except (ArithmeticError, LookupError, ValueError, TypeError, AttributeError) as error:
        raise BadFile(f"{path}: damaged: invalid evidence", remedy="read the original") from error


def _of_dumps(path: Path, recording: Recording, progress: Callable[[int], None] | None) -> DiffSide:
    if not len(recording):
        raise BadFile(f"{path} contains no snapshot", remedy="record again, with at least one snapshot")
    counted = _Counted()
    for number in range(len(recording)):
        snapshot = recording.snapshot(number)
        found: Counter[WaitKey] = Counter()
        for thread in snapshot.threads:
            client = default_kinds().of(thread.frames, thread.comm).name == CLIENT
            wait = _printable(thread.wait)
            found[client, wait] += 1
            functions = tuple(_printable(frame.label) for frame in thread.frames[:DEPTH])
            counted.stacks[client, wait, functions] += 1
        counted.snapshots.append(found)
        if progress:
            progress(number + 1)
    target = snapshot.target
    version = _printable(target.version_text)
    server = {"flavour": target.flavour, "version": version, "pid": str(target.pid)}
    snapshots = len(counted.snapshots)
    times = recording.times
    return DiffSide(
        str(path),
        server,
        times[0],
        times[-1],
        snapshots,
        _waits(counted.snapshots),
        _stacks(counted.stacks, snapshots),
    )


def _of_profile(path: Path) -> DiffSide:
    """Read a profile (folded snapshots) that the agent has served (docs/json.md, A profile)."""
    try:
        data = path.read_bytes() if path.stat().st_size <= _PROFILE_BYTES else b""
        profile = decode_untrusted(data, _Profile)
        waits: Counter[WaitKey] = Counter()
        stacks: Counter[StackKey] = Counter()
        for stack in profile.stacks:
            frames = tuple([_frame(item) for item in stack.frames])
            client, wait = default_kinds().of(frames, "").name == CLIENT, _printable(stack.wait)
            waits[client, wait] += stack.threads
            stacks[client, wait, tuple(frame.label for frame in frames[:DEPTH])] += stack.threads
        means = {key: mean_of(count, profile.looks) for key, count in waits.items()}
        found = _stacks(stacks, profile.looks)
    except (OSError, ArithmeticError, ValueError) as error:
        raise BadFile(
            f"{path}: not a profile: {error}",
            remedy="curl 'http://127.0.0.1:9977/api/stacks?format=json' writes one",
        ) from error
    target = profile.target
    server = {
        "flavour": _printable(target.flavour),
        "version": _printable(target.version_text),
        "pid": str(target.pid),
    }
    return DiffSide(str(path), server, profile.started_at, profile.ended_at, profile.looks, means, found)


def _frame(item: _Frame) -> Frame:
    function = None if item.function is None else _printable(item.function)
    return Frame(function, _printable(item.module), item.offset)


@lru_cache(maxsize=65536)
def _printable(text: str) -> str:
    """Return ``text`` on one line, sanitized. Results are cached: the same few names repeat."""
    return sanitize.words(text)


def mean_of(total: float, snapshots: int, variance: float = 0.0) -> Mean:
    """Return the mean and its standard error.

    The error is at least the Poisson error of the mean, and at least that of a single observed thread.
    """
    count = min(max(snapshots, 1), _INDEPENDENT)
    mean = total / max(snapshots, 1)
    return Mean(mean, (max(mean, variance, 1 / count) / count) ** 0.5)


def _waits(snapshots: list[Counter[WaitKey]]) -> dict[WaitKey, Mean]:
    sums: Counter[WaitKey] = Counter()
    squares: Counter[WaitKey] = Counter()
    for snapshot in snapshots:
        for key, count in snapshot.items():
            sums[key] += count
            squares[key] += count * count
    number = max(1, len(snapshots))
    variances = {key: squares[key] / number - (sums[key] / number) ** 2 for key in sums}
    return {key: mean_of(sums[key], number, variances[key]) for key in sums}


def _stacks(stacks: Mapping[StackKey, int], snapshots: int) -> dict[StackKey, Mean]:
    return {key: mean_of(count, snapshots) for key, count in stacks.items()}


def _series(evidence: Evidence) -> dict[str, MetricSeries]:
    """Return the series by key. A histogram has two series: its rate and its mean."""
    found = {}
    for key in {key for reading in evidence.readings for key in reading.values}:
        name = key.partition(".")[0]
        if name not in default() or default()[name].own:
            continue
        kind = default()[name].kind
        if kind == "gauge":
            found[key] = MetricSeries("level", tuple(evidence.gauge(key)))
        elif kind == "counter":
            rates, events = _rates(evidence, key)
            if rates:
                error = 0.0 if name.endswith("_seconds") else _counting_error(rates, events)
                found[key] = MetricSeries("rate", rates, events, error)
        elif kind == "histogram":
            found |= _observed(evidence, key)
    return {key: series for key, series in found.items() if series.values}


def _observed(evidence: Evidence, key: str) -> dict[str, MetricSeries]:
    """Return two series of a histogram: its rate and its mean in each interval."""
    points = [(one.at, one.values[key]) for one in evidence.readings if key in one.values]
    rates, means, events = [], [], 0
    for (earlier, before), (later, after) in pairwise(points):
        if not isinstance(before, Histogram) or not isinstance(after, Histogram) or later <= earlier:
            continue
        count = max(0, after.count - before.count)
        rates.append(count / (later - earlier))
        events += count
        if count:
            means.append(max(0, after.total_ns - before.total_ns) / _NS / count)
    if not rates:
        return {}
    return {
        key: MetricSeries("mean", tuple(means), events),
        f"{key} observed": MetricSeries("rate", tuple(rates), events, _counting_error(tuple(rates), events)),
    }


def _rates(evidence: Evidence, key: str) -> tuple[tuple[float, ...], float]:
    """Return a counter's growth per second in each interval, and its total growth."""
    points = [(one.at, one.values[key]) for one in evidence.readings if key in one.values]
    numbers = [(at, value) for at, value in points if not isinstance(value, Histogram)]
    pairs = list(pairwise(numbers))
    rates = tuple(
        max(0.0, after - before) / (later - earlier)
        for (earlier, before), (later, after) in pairs
        if later > earlier
    )
    return rates, sum(max(0.0, after - before) for (_, before), (_, after) in pairs)


def _counting_error(rates: tuple[float, ...], events: float) -> float:
    """Return a rate's standard error. With at most one event, assume that one interval has a rate of 1/s."""
    middle = sum(rates) / len(rates)
    return middle / events**0.5 if events > 1 else 1 / len(rates)


def all_keys(keys: Iterable[Mapping[Any, Any]]) -> list[Any]:
    """Return the distinct keys of several mappings, in order of appearance."""
    return list(dict.fromkeys(key for one in keys for key in one))
