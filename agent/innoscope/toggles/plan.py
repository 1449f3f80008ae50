"""Plan the change of a toggle with the first backend that works on this server."""

from __future__ import annotations

import difflib
from contextlib import closing
from typing import TYPE_CHECKING

from innoscope.common.errors import InnoscopeError
from innoscope.toggles import catalog, checks
from innoscope.toggles.dependencies import Dependencies
from innoscope.toggles.model import NotOnThisServer, Plan, Refused, same

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from innoscope.target.credentials import Account
    from innoscope.target.model import Target
    from innoscope.toggles.model import Generation, Step, Toggle, Verdict, Way


def find_toggle(toggles: Mapping[str, Toggle], name: str) -> Toggle:
    """Return the toggle with this name. Raises Refused, with similar names, if there is none."""
    if name in toggles:
        return toggles[name]
    near = difflib.get_close_matches(name, toggles, 3)
    hint = f"did you mean {', '.join(near)}? " if near else ""
    raise Refused(f"there is no toggle {name!r}", remedy=f"{hint}innoscope toggle list")


def plan(
    target: Target,
    toggle_name: str,
    value: str,
    *,
    account: Account,
    ways: Sequence[str] | None = None,
    deps: Dependencies | None = None,
) -> Plan:
    """Plan setting the toggle to a value, and run the checks. Nothing is written.

    The backends are tried in the order of the catalog, or of ``ways`` if given. Raises NotOnThisServer, or
    Refused if the value is invalid or no backend works. If there is only one backend, raises its error.
    """
    deps = deps or Dependencies()
    toggle = find_toggle(deps.toggles(), toggle_name)
    generation = catalog.generation(toggle, target.flavour, target.version)
    facts = deps.facts(target, deps.journal)
    entries = deps.journal.entries_if_readable()
    passed: list[tuple[str, str]] = []
    failures: list[InnoscopeError] = []
    for way in _candidates(generation, ways, passed):
        new = catalog.raws(way, toggle, value)
        held_up = _unusable(checks.server_verdicts(target, facts, way.kind), way)
        try:
            if held_up is not None:
                raise Refused(str(held_up.reason), remedy=held_up.remedy)
            with closing(deps.writer(way.kind, target, account)) as writer:
                steps = tuple(writer.prepare(way, new))
        except InnoscopeError as error:
            passed.append((way.kind, error.what))
            failures.append(error)
            continue
        change = checks.Change(toggle.name, toggle.domain, value, way, steps)
        return Plan(
            toggle=toggle,
            value=value,
            way=way,
            steps=steps,
            verdicts=checks.verdicts(target, facts, change, entries),
            warnings=tuple(_warnings(toggle, way, steps)),
            passed=tuple(passed),
        )
    raise _no_way(toggle, target, passed, failures)


def _candidates(
    generation: Generation, asked: Sequence[str] | None, passed: list[tuple[str, str]]
) -> Iterator[Way]:
    """Yield the backends to try, and add the others to ``passed``, with the reasons."""
    kinds = list(dict.fromkeys(way.kind for way in generation.ways)) if asked is None else list(asked)
    for kind in kinds:
        ways = [way for way in generation.ways if way.kind == kind]
        if kind in generation.never:
            passed.append((kind, generation.never[kind]))
        elif not ways:
            passed.append((kind, generation.refused or "the catalog has no such way for these servers"))
        else:
            yield from ways


def _unusable(verdicts: Sequence[Verdict], way: Way) -> Verdict | None:
    """Return the failed check that rules out the backend, or None.

    For example, the SQL backend is ruled out if the server is stopped, because the server would not reply.
    """
    names = {"identity"}
    if way.kind == "sql":
        names |= {"not_stopped", "serving"}
    else:
        names |= {"rights", "ptrace_policy"}
    return next((verdict for verdict in verdicts if not verdict.ok and verdict.check in names), None)


def _warnings(toggle: Toggle, way: Way, steps: Sequence[Step]) -> Iterator[str]:
    if toggle.also:
        yield toggle.also
    if way.note:
        yield way.note
    if all(same(step.old, step.new) for step in steps):
        yield "it is that already: nothing would change"


def _no_way(
    toggle: Toggle, target: Target, passed: Sequence[tuple[str, str]], failures: Sequence[InnoscopeError]
) -> InnoscopeError:
    """Return the error to raise if no backend works: the only backend's error, or one with all reasons."""
    if len(failures) == 1 and len(passed) == 1:
        return failures[0]
    reasons = "; ".join(f"{kind}: {reason}" for kind, reason in passed)
    shown = ".".join(map(str, target.version)) or "of unknown version"
    only_absent = all(isinstance(error, NotOnThisServer) for error in failures)
    kind = NotOnThisServer if only_absent else Refused
    remedies = "\n".join(dict.fromkeys(error.remedy for error in failures if error.remedy))
    return kind(
        f"no way to set {toggle.name} on {target.flavour} {shown}: {reasons or 'the catalog has none'}",
        remedy=remedies or f"innoscope toggle show {toggle.name}",
    )
