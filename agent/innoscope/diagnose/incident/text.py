"""What an incident file says: its findings by today's rules, and each of its parts as text."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from innoscope.common.errors import BadFile
from innoscope.common.samples import Histogram
from innoscope.diagnose import text as diagnose_text
from innoscope.diagnose.verdict import judge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from innoscope.diagnose.evidence import Evidence
    from innoscope.diagnose.incident.model import Capture
    from innoscope.sampling.snapshot_history import ObservedStack

#: What arithmetic and look-ups raise on evidence that no server gives.
_SENSELESS: Final = (ArithmeticError, LookupError, ValueError, TypeError, AttributeError)
_NS: Final = 1e9


def findings(path: Path, capture: Capture) -> tuple[list[str], dict[str, Any]]:
    """The lines for a person and the JSON value, judged anew. Raises BadFile for senseless evidence."""
    try:
        verdict = judge(capture.evidence)
        lines = list(diagnose_text.text(capture.evidence, verdict))
        record = diagnose_text.record(capture.evidence, verdict)
    except _SENSELESS as error:
        raise BadFile(
            f"{path}: damaged: its evidence makes no sense ({type(error).__name__})",
            remedy="this needs a file of `innoscope diagnose --save FILE`, unchanged",
        ) from error
    now = [finding.name for finding in verdict.findings]
    then = _said_then(capture)
    about = {"path": str(path), **asdict(capture.taken), "trigger": capture.trigger, "findings_then": then}
    head = list(_head(path, capture))
    if then is not None and then != now:
        head.append(f"said then, by other rules: {', '.join(then) or 'nothing wrong'}")
    return [*head, "", *lines], record | {"file": about}


def _said_then(capture: Capture) -> list[str] | None:
    found = capture.verdict.get("findings")
    if not isinstance(found, list):
        return None
    return [str(one["name"]) for one in found if isinstance(one, dict) and "name" in one]


def _head(path: Path, capture: Capture) -> Iterator[str]:
    who = capture.taken
    at = _at(capture.evidence.begun)
    yield f"from {path}: seen {at} on {who.host}, taken by {who.by} with innoscope {who.innoscope}"
    if capture.trigger:
        yield f"taken because of: {capture.trigger}"
    if capture.before is not None:
        yield f"holds {capture.before.seconds:.0f} s before it: innoscope diff {path}"
    for name, why in capture.missing.items():
        yield f"without {name}: {why.words}"


def _at(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
    except (ValueError, OverflowError, OSError):
        return "at an unknown time"


def folded(seen: Iterable[ObservedStack]) -> Iterator[str]:
    """Folded stacks, ``root;…;leaf count``, threads of all looks added up."""
    counts: Counter[str] = Counter()
    for one in seen:
        path = [name.replace(";", ":") for name in reversed(one.functions)] or ["[no frames]"]
        counts[";".join(path)] += one.count
    for line, count in counts.most_common():
        yield f"{line} {count}"


def stacks(evidence: Evidence) -> Iterator[str]:
    """All stacks, most threads first: how many in a look, kind, wait class, functions innermost first."""
    looks = max(1, len(evidence.looks))
    for one in evidence.seen:
        yield f"{one.count / looks:8.1f}  {one.kind} {one.wait}  {','.join(one.functions)}"


def metrics(evidence: Evidence) -> Iterator[str]:
    """Each series: its first and its last value; of histograms, how many observations and their mean."""
    keys = sorted({key for snapshot in evidence.snapshots for key in snapshot.values})
    for key in keys:
        values = [snapshot.values[key] for snapshot in evidence.snapshots if key in snapshot.values]
        yield f"{key}  {_value(values[0])} … {_value(values[-1])}"


def _value(value: float | Histogram) -> str:
    if isinstance(value, Histogram):
        mean = value.total_ns / _NS / value.count if value.count else 0.0
        return f"{value.count:,} of {mean:.6f} s"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def _of_mapping(values: Mapping[str, str]) -> Iterator[str]:
    for name, value in values.items():
        yield f"{name}  {value}"


#: What ``--show`` shows of a capture, beside its findings.
PARTS: Final[dict[str, Callable[[Capture], Iterable[str]]]] = {
    "stacks": lambda capture: stacks(capture.evidence),
    "folded": lambda capture: folded(capture.evidence.seen),
    "metrics": lambda capture: metrics(capture.evidence),
    "status": lambda capture: (capture.status or "").split("\n"),
    "variables": lambda capture: _of_mapping(capture.variables),
}


def part(capture: Capture, name: str) -> list[str]:
    """The lines of one part; why it is not there, if so."""
    lines = list(PARTS[name](capture))
    why = capture.missing.get(name)
    if not any(lines) and why is not None:
        return [f"not in the file: {why.words}"]
    return lines
