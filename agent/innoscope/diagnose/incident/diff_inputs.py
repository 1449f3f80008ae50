"""Read one side of a comparison from a dump, recording, profile or incident file, in a common form."""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from innoscope.common import sanitize
from innoscope.common.errors import BadFile
from innoscope.common.samples import Histogram
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
Wait = tuple[bool, str]
#: (true for a client thread, wait class, innermost functions)
Stack = tuple[bool, str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean number of threads per snapshot, and its standard error."""

    mean: float
    error: float


@dataclass(frozen=True, slots=True)
class Series:
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
class Side:
    """The data of one side. None means that the file does not contain the data."""

    path: str
    server: Mapping[str, str]
    begun: float
    ended: float
    snapshots: int
    waits: Mapping[Wait, Mean]
    stacks: Mapping[Stack, Mean]
    series: Mapping[str, Series] | None = None
    variables: Mapping[str, str] | None = None
    findings: tuple[Finding, ...] | None = None
    #: Findings that could not be checked.
    undecided: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Counted:
    """Thread counts: by wait class in each snapshot, and by stack over all snapshots."""

    snapshots: list[Counter[Wait]] = field(default_factory=list)
    stacks: Counter[Stack] = field(default_factory=Counter)


def open_side(path: Path, progress: Callable[[int], None] | None = None) -> Side:
    """Read any supported file. Raise BadFile if it cannot be read or is damaged.

    ``progress`` is called with the number of snapshots read.
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


def of_capture(path: Path, capture: Capture) -> Side:
    """Return a side with the evidence of the incident. Raise BadFile for invalid evidence."""
    return _of_evidence(str(path), capture.evidence, _variables(capture))


def before_of(path: Path, capture: Capture) -> Side:
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


def _of_evidence(path: str, evidence: Evidence, variables: Mapping[str, str] | None) -> Side:
    counted = _Counted()
    for snapshot in evidence.snapshots:
        found: Counter[Wait] = Counter()
        for (kind, wait), count in snapshot.threads.items():
            found[kind == CLIENT, wait] += count
        counted.snapshots.append(found)
    for seen in evidence.seen:
        counted.stacks[seen.kind == CLIENT, seen.wait, seen.functions[:DEPTH]] += seen.count
    try:
        verdict = judge(evidence)
        return Side(
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


def _of_dumps(path: Path, recording: Recording, progress: Callable[[int], None] | None) -> Side:
    if not len(recording):
        raise BadFile(f"{path} contains no snapshot", remedy="record again, with at least one snapshot")
    counted = _Counted()
    for number in range(len(recording)):
        snapshot = recording.snapshot(number)
        found: Counter[Wait] = Counter()
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
    return Side(
        str(path),
        server,
        times[0],
        times[-1],
        snapshots,
        _waits(counted.snapshots),
        _stacks(counted.stacks, snapshots),
    )


def _of_profile(path: Path) -> Side:
    """Read a profile from the agent, which contains folded snapshots (docs/json.md, A profile)."""
    try:
        data = path.read_bytes() if path.stat().st_size <= _PROFILE_BYTES else b""
        value = json.loads(data)
        snapshots, target = int(value["looks"]), value["target"]
        waits: Counter[Wait] = Counter()
        stacks: Counter[Stack] = Counter()
        for stack in value["stacks"]:
            frames = tuple(_frame(item) for item in stack["frames"])
            client = default_kinds().of(frames, "").name == CLIENT
            wait, count = _printable(str(stack["wait"])), int(stack["threads"])
            waits[client, wait] += count
            stacks[client, wait, tuple(frame.label for frame in frames[:DEPTH])] += count
        server = {
            "flavour": _printable(str(target["flavour"])),
            "version": _printable(str(target["version_text"])),
            "pid": str(int(target["pid"])),
        }
        means = {key: _mean(count, snapshots) for key, count in waits.items()}
        begun, ended = float(value["started_at"]), float(value["ended_at"])
        return Side(str(path), server, begun, ended, snapshots, means, _stacks(stacks, snapshots))
    except (
        OSError,
        ArithmeticError,
        LookupError,
        ValueError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        raise BadFile(
            f"{path}: not a profile: {type(error).__name__}",
            remedy="curl 'http://127.0.0.1:9977/api/stacks?format=json' writes one",
        ) from error


def _frame(item: Mapping[str, Any]) -> Frame:
    function = item["function"]
    return Frame(
        None if function is None else _printable(str(function)),
        _printable(str(item["module"])),
        int(item["offset"]),
    )


@lru_cache(maxsize=65536)
def _printable(text: str) -> str:
    """Return ``text`` on one line, sanitized. Results are cached: the same few names repeat."""
    return sanitize.words(text)


def _mean(total: float, snapshots: int, variance: float = 0.0) -> Mean:
    """Return the mean and its standard error.

    The error is at least the Poisson error of the mean, and at least that of a single observed thread.
    """
    count = min(max(snapshots, 1), _INDEPENDENT)
    mean = total / max(snapshots, 1)
    return Mean(mean, (max(mean, variance, 1 / count) / count) ** 0.5)


def _waits(snapshots: list[Counter[Wait]]) -> dict[Wait, Mean]:
    sums: Counter[Wait] = Counter()
    squares: Counter[Wait] = Counter()
    for snapshot in snapshots:
        for key, count in snapshot.items():
            sums[key] += count
            squares[key] += count * count
    number = max(1, len(snapshots))
    variances = {key: squares[key] / number - (sums[key] / number) ** 2 for key in sums}
    return {key: _mean(sums[key], number, variances[key]) for key in sums}


def _stacks(stacks: Mapping[Stack, int], snapshots: int) -> dict[Stack, Mean]:
    return {key: _mean(count, snapshots) for key, count in stacks.items()}


def _series(evidence: Evidence) -> dict[str, Series]:
    """Return the series by key. A histogram has two series: its rate and its mean."""
    found = {}
    for key in {key for reading in evidence.readings for key in reading.values}:
        name = key.partition(".")[0]
        if name not in default() or default()[name].own:
            continue
        kind = default()[name].kind
        if kind == "gauge":
            found[key] = Series("level", tuple(evidence.gauge(key)))
        elif kind == "counter":
            rates, events = _rates(evidence, key)
            if rates:
                error = 0.0 if name.endswith("_seconds") else _counting_error(rates, events)
                found[key] = Series("rate", rates, events, error)
        elif kind == "histogram":
            found |= _observed(evidence, key)
    return {key: series for key, series in found.items() if series.values}


def _observed(evidence: Evidence, key: str) -> dict[str, Series]:
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
        key: Series("mean", tuple(means), events),
        f"{key} observed": Series("rate", tuple(rates), events, _counting_error(tuple(rates), events)),
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
    """Return a rate's standard error. With at most one event, assume a rate of 1/s in one interval."""
    middle = sum(rates) / len(rates)
    return middle / events**0.5 if events > 1 else 1 / len(rates)


def all_keys(keys: Iterable[Mapping[Any, Any]]) -> list[Any]:
    """Return the distinct keys of several mappings, in order of appearance."""
    return list(dict.fromkeys(key for one in keys for key in one))
