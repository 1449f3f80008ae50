"""Format differences as text and as JSON."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from innoscope.diagnose.incident.text import utc
from innoscope.sampling.classify import server_functions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.diagnose.incident.diff import Differences, MetricChange, ThreadChange
    from innoscope.diagnose.incident.diff_inputs import DiffSide

VERSION: Final = 1
#: Maximum number of functions to show per stack, unless all are requested.
_FUNCTIONS: Final = 6
#: Maximum number of characters shown of a variable's value.
_CHARACTERS: Final = 60
_UNITS: Final = {"rate": "/s", "level": "", "mean": " s"}


def text(a: DiffSide, b: DiffSide, found: Differences, limit: int, *, full: bool = False) -> Iterator[str]:
    """Yield the report's lines, with at most ``limit`` differences of each kind.

    If ``full`` is false, stacks begin at the server's own innermost function and are truncated.
    """
    yield f"a: {_side(a)}"
    yield f"b: {_side(b)}"
    for note in found.notes:
        yield f"note: {note}"
    if not found:
        yield "No significant difference."
    yield from _section(
        "findings", [f"{one.change:<5} {one.title}  [{one.name}]" for one in found.findings], limit
    )
    yield from _section(
        "threads per snapshot, a → b", [_threads(one, full=full) for one in found.waits], limit
    )
    stacks = [_threads(one, full=full) for one in found.stacks]
    yield from _section("stacks, threads per snapshot", stacks, limit)
    yield from _section("metrics", [_metric(one) for one in found.metrics], limit)
    variables = [f"{one.name}: {_cut(one.a)} → {_cut(one.b)}" for one in found.variables]
    yield from _section("variables", variables, limit)


def _side(side: DiffSide) -> str:
    flavour = {"mysql": "MySQL", "mariadb": "MariaDB"}.get(side.server.get("flavour", ""), "server")
    version, pid = side.server.get("version", "?"), side.server.get("pid", "?")
    seconds = side.ended - side.begun
    snapshots = f"{side.snapshots:,} snapshot{'s' if side.snapshots != 1 else ''}"
    return f"{side.path}: {flavour} {version}, pid {pid}, {utc(side.begun)}, {snapshots} in {seconds:.0f} s"


def _section(title: str, lines: list[str], limit: int) -> Iterator[str]:
    if not lines:
        return
    yield ""
    yield title
    for line in lines[:limit]:
        yield f"  {line}"
    if len(lines) > limit:
        yield f"  … and {len(lines) - limit} more: --limit {len(lines)}"


def _threads(one: ThreadChange, *, full: bool) -> str:
    who = "" if one.clients else "the server's own: "
    words = f"{one.a:>7,.1f} → {one.b:<7,.1f} {_sign(one.a, one.b)} {who}{one.wait.replace('_', ' ')}"
    if not one.functions:
        return words
    own = one.functions if full else server_functions(one.functions, one.wait)
    most = len(own) if full else _FUNCTIONS
    return f"{words}  {','.join(own[:most])}" + (",…" if len(own) > most else "")


def _sign(a: float, b: float) -> str:
    return "new " if not a else "gone" if not b else "more" if b > a else "less"


def _metric(one: MetricChange) -> str:
    unit = _UNITS[one.kind]
    values = f"{_number(one.a)}{unit} → {_number(one.b)}{unit}"
    return f"{one.series}: {values} ({_times(one.a, one.b)})"


def _times(a: float, b: float) -> str:
    if not a or not b:
        return "new" if not a else "gone"
    factor = b / a
    return f"×{factor:,.1f}" if factor >= 1 else f"÷{1 / factor:,.1f}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.3g}"


def _cut(value: str | None) -> str:
    if value is None:
        return "(none)"
    return value if len(value) <= _CHARACTERS else value[: _CHARACTERS - 1] + "…"


def record(a: DiffSide, b: DiffSide, found: Differences) -> dict[str, Any]:
    """Return the differences as a JSON value (docs/json.md)."""
    return {"version": VERSION, "a": _record(a), "b": _record(b), **asdict(found)}


def _record(side: DiffSide) -> dict[str, Any]:
    begun, ended = ((value if math.isfinite(value) else None) for value in (side.begun, side.ended))
    return {
        "path": side.path,
        "server": dict(side.server),
        "begun": begun,
        "ended": ended,
        "looks": side.snapshots,
    }
