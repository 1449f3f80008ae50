"""Format the output of ``innoscope toggle`` as text and as JSON: tables, plans and results."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from innoscope.toggles.model import ChangeRefused, Risk, same

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from innoscope.target.model import Target
    from innoscope.toggles.journal_format import JournalEntry
    from innoscope.toggles.model import Backend, ChangePlan, ChangeStep, Raw, Toggle, ToggleGeneration

LIST = ("TOGGLE", "NOW", "RANGE", "BACKENDS", "RISK", "DESCRIPTION, OR WHY NOT SUPPORTED")
HISTORY = ("ID", "WHEN", "WHO", "SERVER", "TOGGLE", "CHANGE", "BACKEND", "OUTCOME", "UNTIL", "WHY")
_BACKENDS = {
    "sql": "SET GLOBAL; the server keeps running",
    "memory": "one write to its memory; the server keeps running",
}
_DAY_S = 86_400
_READABLE = 100  # maximum width of a paragraph in columns


@dataclass(frozen=True, slots=True)
class Here:
    """A toggle on one server: current value, allowed values and backends, or why it is not supported."""

    toggle: Toggle
    now: str | None = None
    allowed: str = ""
    generation: ToggleGeneration | None = None
    why_not: str | None = None

    @property
    def backends(self) -> tuple[Backend, ...]:
        """Return the backends that can be used on this server."""
        return self.generation.backends if self.generation else ()

    def row(self) -> tuple[str, ...]:
        """Return the cells of the toggle's row in ``toggle list``."""
        toggle = self.toggle
        if self.why_not is not None:
            return (
                toggle.name,
                "–",
                "",
                "none",
                toggle.risk.value,
                self.why_not.removeprefix(f"{toggle.name}: "),
            )
        kinds = ", ".join(dict.fromkeys(backend.kind for backend in self.backends))
        return (toggle.name, self.now or "?", self.allowed, kinds, toggle.risk.value, toggle.title)

    def document(self) -> Mapping[str, object]:
        """Return the JSON document of the toggle on this server."""
        return {
            "toggle": self.toggle.name,
            "title": self.toggle.title,
            "what": self.toggle.what,
            "risk": self.toggle.risk.value,
            "now": self.now,
            "allowed": self.allowed,
            "ways": [
                {"kind": backend.kind, "settings": _settings(backend), "note": backend.note}
                for backend in self.backends
            ],
            "never": dict(self.generation.never) if self.generation else {},
            "why_not": self.why_not,
            "also": self.toggle.also,
            "undo": self.toggle.undo,
            "cluster": self.toggle.cluster,
        }


def title(target: Target) -> str:
    """Return the flavour, version and pid, for example ``mysql 5.6.24, pid 4242``."""
    return f"{target.flavour} {dotted(target.version)}, pid {target.pid}"


def show_lines(here: Here, target: Target) -> Iterator[str]:
    """Yield the lines of ``toggle show``: the toggle, and its value and backends on this server."""
    toggle = here.toggle
    yield f"{toggle.name}: {toggle.title} ({toggle.risk.value})"
    yield from wrap(toggle.what, _READABLE, initial_indent="  ", subsequent_indent="  ")
    yield from _labeled("also", toggle.also)
    yield from _labeled("undo", toggle.undo)
    yield from _labeled("cluster", toggle.cluster)
    if toggle.risk is Risk.DANGEROUS:
        yield from _labeled("confirm", "by typing its name, or --confirm " + toggle.name)
    yield ""
    yield title(target)
    if here.why_not is not None:
        yield from _labeled("not here", here.why_not)
        return
    yield from _labeled("now", here.now or "unknown: innoscope toggle plan shows why")
    yield from _labeled("values", here.allowed)
    for backend in here.backends:
        yield from _labeled(backend.kind, f"{', '.join(_settings(backend))} ({_BACKENDS[backend.kind]})")
        yield from _labeled("", backend.note)
    for kind, reason in (here.generation.never if here.generation else {}).items():
        yield from _labeled(f"{kind}: no", reason)


def plan_lines(target: Target, plan: ChangePlan) -> Iterator[str]:
    """Yield the lines of ``toggle plan``: the changes, notes, results of the checks, and undo command."""
    toggle = plan.toggle
    kind = plan.backend.kind
    yield f"{title(target)}: {toggle.name} → {plan.value}, by {kind} ({_BACKENDS[kind]})"
    for kind, reason in plan.passed:
        yield from _labeled("not by", f"{kind}: {reason}")
    for step in plan.steps:
        yield from _labeled("step", _step_text(step))
    for text in dict.fromkeys(filter(None, (toggle.also, plan.backend.note, *plan.warnings))):
        yield from _labeled("note", text)
    passed = sum(verdict.ok for verdict in plan.verdicts)
    yield from _labeled("checks", f"{passed} of {len(plan.verdicts)} passed")
    for verdict in plan.refusals:
        yield from _labeled("not ok", f"{verdict.check}: {verdict.reason}")
    kept = f"; {toggle.undo}" if toggle.undo else ""
    yield from _labeled("undo", f"innoscope toggle undo {toggle.name}{kept}")


def plan_document(target: Target, plan: ChangePlan) -> Mapping[str, object]:
    """Return the JSON document of a plan."""
    return {
        "target": target.document(),
        "toggle": plan.toggle.name,
        "risk": plan.toggle.risk.value,
        "value": plan.value,
        "way": plan.backend.kind,
        "steps": [asdict(step) for step in plan.steps],
        "checks": [asdict(verdict) for verdict in plan.verdicts],
        "possible": not plan.refusals,
        "warnings": list(plan.warnings),
        "passed": [{"way": kind, "reason": reason} for kind, reason in plan.passed],
    }


def refusal(plan: ChangePlan) -> ChangeRefused:
    """Return the error for a plan that the checks reject, with all reasons and remedies."""
    reasons = "; ".join(verdict.reason or verdict.check for verdict in plan.refusals)
    remedies = dict.fromkeys(verdict.remedy for verdict in plan.refusals if verdict.remedy)
    return ChangeRefused(f"{plan.toggle.name} is not changed: {reasons}", remedy="\n".join(remedies) or None)


def done_lines(entry: JournalEntry) -> Iterator[str]:
    """Yield the lines that report a change and the command that undoes it."""
    yield f"{entry.toggle} is {entry.value} (by {entry.backend}, {entry.id})"
    for step in entry.steps:
        yield f"  {step.setting}: {_change(step)}"
    if entry.until is not None:
        yield f"  undone at {clock(entry.until)}; earlier: innoscope toggle undo {entry.id}"
    else:
        yield f"  undo: innoscope toggle undo {entry.id}"


def undone_lines(entry: JournalEntry) -> Iterator[str]:
    """Yield the lines that report an undo. ``entry`` is the journal entry of the original change."""
    if entry.outcome != "undone":
        yield f"{entry.toggle}: nothing to undo, {entry.id} was not written"
        return
    yield f"{entry.toggle} is as it was before {entry.id} of {clock(entry.at)}, by {entry.who}"
    for step in reversed(entry.steps):
        yield f"  {step.setting}: {_change(replace(step, old=step.new, new=step.old))}"


def history_row(entry: JournalEntry) -> tuple[str, ...]:
    """Return the cells of an entry's row in ``toggle history``."""
    server = f"{entry.server.flavour} {dotted(entry.server.version)} pid {entry.server.pid}"
    steps = ", ".join(f"{step.setting} {_change(step)}".rstrip() for step in entry.steps)
    what = entry.toggle + (f" {entry.value}" if entry.value else "")
    outcome = entry.outcome + (f" by {entry.undone_by}" if entry.undone_by else "")
    return (
        entry.id, clock(entry.at), entry.who, server,
        f"undo of {entry.undoes}" if entry.undoes else what, steps, entry.backend,
        f"{outcome}: {entry.reason}" if entry.reason else outcome,
        clock(entry.until) if entry.until and entry.outcome == "done" else "", entry.why or "",
    )  # fmt: skip


def entry_document(entry: JournalEntry) -> dict[str, Any]:
    """Return the JSON document of a journal entry, including the command that undoes it, if any."""
    undoable = entry.outcome == "done" and any(step.old is not None for step in entry.steps)
    undo = f"innoscope toggle undo {entry.id}" if undoable and not entry.undoes else None
    fields = {"way" if name == "backend" else name: value for name, value in asdict(entry).items()}
    return {**fields, "undo_command": undo}


def clock(at: float) -> str:
    """Format a Unix time as local time, with the date if it is more than a day from now."""
    form = "%H:%M:%S" if abs(at - time.time()) < _DAY_S else "%Y-%m-%d %H:%M:%S"
    return datetime.fromtimestamp(at).astimezone().strftime(form)


def dotted(version: Sequence[int]) -> str:
    """Format a version as ``5.6.24``."""
    return ".".join(map(str, version)) or "of unknown version"


def _step_text(step: ChangeStep) -> str:
    """Format a step as ``innodb_x: 56 → 0``. For a memory write, append the address and how it was found."""
    text = f"{step.setting}: {_change(step)}"
    if step.address is None:
        return text
    return f"{text}, {step.size} bytes {step.type} at {step.address:#x} (from {step.origin})"


def _change(step: ChangeStep) -> str:
    """Format a change as ``56 → 0`` or ``OFF, unchanged``. Return "" for a step without values.

    If either value is a bool, both are shown as ON or OFF, even if the server reports 0 or 1.
    """
    if step.old is None or step.new is None:
        return ""
    switch = isinstance(step.old, bool) or isinstance(step.new, bool)
    old, new = ((_switch(raw) if switch else str(raw)) for raw in (step.old, step.new))
    return f"{new}, unchanged" if same(step.old, step.new) else f"{old} → {new}"


def _switch(raw: Raw) -> str:
    return "ON" if same(raw, True) else "OFF" if same(raw, False) else str(raw)


def _settings(backend: Backend) -> list[str]:
    return [assignment.setting.name for assignment in backend.assignments]


def _labeled(label: str, text: str | None) -> Iterator[str]:
    if text:
        yield f"  {label:<9} {text}"
