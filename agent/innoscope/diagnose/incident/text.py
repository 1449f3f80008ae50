"""Format an incident file as text: its findings according to the current rules, and each of its parts."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import msgspec

from innoscope.common.errors import BadFile
from innoscope.common.samples import Histogram
from innoscope.common.typed import convert_untrusted
from innoscope.diagnose import text as diagnose_text
from innoscope.diagnose.verdict import judge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from innoscope.diagnose.evidence import Evidence
    from innoscope.diagnose.incident.model import Capture
    from innoscope.diagnose.verdict import Verdict
    from innoscope.sampling.snapshot_history import ObservedStack

#: Errors that rules can raise on evidence that no real server produces.
_INVALID_EVIDENCE: Final = (ArithmeticError, LookupError, ValueError, TypeError, AttributeError)
_NS: Final = 1e9


def findings(
    path: Path, capture: Capture, *, full: bool = False
) -> tuple[list[str], dict[str, Any], Verdict]:
    """Apply the current rules, and return the report's lines, its JSON value and the verdict.

    If ``full`` is true, the lines contain complete stacks.

    Raise BadFile if the evidence is invalid.
    """
    try:
        verdict = judge(capture.evidence)
        lines = list(diagnose_text.text(capture.evidence, verdict, full=full))
        record = diagnose_text.record(capture.evidence, verdict)
    except _INVALID_EVIDENCE as error:
        raise BadFile(
            f"{path}: damaged: invalid evidence ({type(error).__name__})",
            remedy="use an unmodified file written by `innoscope diagnose --save FILE`",
        ) from error
    now = [finding.name for finding in verdict.findings]
    then = _earlier_findings(capture)
    about = {"path": str(path), **asdict(capture.taken), "trigger": capture.trigger, "findings_then": then}
    head = list(_head(path, capture))
    if then is not None and then != now:
        head.append(f"findings at that time, by other rules: {', '.join(then) or 'none'}")
    return [*head, "", *lines], record | {"file": about}, verdict


class _Finding(msgspec.Struct, frozen=True):
    name: str


class _Verdict(msgspec.Struct, frozen=True):
    """The part of the stored verdict that is shown. Unknown keys are ignored."""

    findings: list[_Finding]


def _earlier_findings(capture: Capture) -> list[str] | None:
    try:
        return [one.name for one in convert_untrusted(capture.verdict, _Verdict).findings]
    except ValueError:
        return None


def _head(path: Path, capture: Capture) -> Iterator[str]:
    who = capture.taken
    at = utc(capture.evidence.begun)
    yield f"from {path}: observed {at} on {who.host}, captured by {who.by} with innoscope {who.innoscope}"
    if capture.trigger:
        yield f"captured because of: {capture.trigger}"
    if capture.before is not None:
        yield f"includes {capture.before.seconds:.0f} s before it: innoscope diff {path}"
    for name, why in capture.missing.items():
        yield f"without {name}: {why.words}"


def utc(seconds: float) -> str:
    """Return a Unix time as text; the time of an incident file may be invalid."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
    except (ValueError, OverflowError, OSError):
        return "at an unknown time"


def folded(seen: Iterable[ObservedStack]) -> Iterator[str]:
    """Yield folded stacks, ``root;…;leaf count``, with threads summed over all snapshots."""
    counts: Counter[str] = Counter()
    for one in seen:
        path = [name.replace(";", ":") for name in reversed(one.functions)] or ["[no frames]"]
        counts[";".join(path)] += one.count
    for line, count in counts.most_common():
        yield f"{line} {count}"


def stacks(evidence: Evidence) -> Iterator[str]:
    """Yield a line for each stack, most threads first: threads per snapshot, kind, wait class, functions."""
    snapshots = max(1, len(evidence.snapshots))
    for one in evidence.seen:
        yield f"{one.count / snapshots:8.1f}  {one.kind} {one.wait}  {','.join(one.functions)}"


def metrics(evidence: Evidence) -> Iterator[str]:
    """Yield the first and last value of each series.

    For histograms, yield the number of observations and their mean.
    """
    keys = sorted({key for reading in evidence.readings for key in reading.values})
    for key in keys:
        values = [reading.values[key] for reading in evidence.readings if key in reading.values]
        yield f"{key}  {_value(values[0])} … {_value(values[-1])}"


def _value(value: float | Histogram) -> str:
    if isinstance(value, Histogram):
        mean = value.total_ns / _NS / value.count if value.count else 0.0
        return f"{value.count:,} of {mean:.6f} s"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def _lines(values: Mapping[str, str]) -> Iterator[str]:
    for name, value in values.items():
        yield f"{name}  {value}"


#: Parts of a capture that can be selected with ``--show``.
PARTS: Final[dict[str, Callable[[Capture], Iterable[str]]]] = {
    "stacks": lambda capture: stacks(capture.evidence),
    "folded": lambda capture: folded(capture.evidence.seen),
    "metrics": lambda capture: metrics(capture.evidence),
    "status": lambda capture: (capture.status or "").split("\n"),
    "variables": lambda capture: _lines(capture.variables),
}


def part(capture: Capture, name: str) -> list[str]:
    """Return the lines of one part, or the reason why it is missing."""
    lines = list(PARTS[name](capture))
    why = capture.missing.get(name)
    if not any(lines) and why is not None:
        return [f"not in the file: {why.words}"]
    return lines
