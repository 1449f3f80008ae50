"""Plan a change to a toggle with the first backend that works on this server."""

from __future__ import annotations

import difflib
from contextlib import closing
from typing import TYPE_CHECKING

from innoscope.common.errors import InnoscopeError
from innoscope.toggles import catalog, checks
from innoscope.toggles.dependencies import Dependencies
from innoscope.toggles.model import ChangePlan, ChangeRefused, NotOnThisServer, same

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from innoscope.target.credentials import LoginOptions
    from innoscope.target.model import Target
    from innoscope.toggles.model import Backend, ChangeStep, Toggle, ToggleGeneration, ToggleVerdict


def find_toggle(toggles: Mapping[str, Toggle], name: str) -> Toggle:
    """Return the toggle with this name. Raise ChangeRefused, with similar names, if there is none."""
    if name in toggles:
        return toggles[name]
    near = difflib.get_close_matches(name, toggles, 3)
    hint = f"did you mean {', '.join(near)}? " if near else ""
    raise ChangeRefused(f"unknown toggle {name!r}", remedy=f"{hint}innoscope toggle list")


def plan(
    target: Target,
    toggle_name: str,
    value: str,
    *,
    account: LoginOptions,
    backends: Sequence[str] | None = None,
    deps: Dependencies | None = None,
) -> ChangePlan:
    """Plan the steps that set the toggle to a value, and run the checks. Nothing is written.

    The backends are tried in catalog order, or in the order of ``backends`` if given. Raise NotOnThisServer
    if the server does not have the setting, or ChangeRefused if the value is invalid or no backend works. If
    there is only one backend, raise that backend's error.
    """
    deps = deps or Dependencies()
    toggle = find_toggle(deps.toggles(), toggle_name)
    generation = catalog.generation(toggle, target.flavour, target.version)
    facts = deps.facts(target, deps.journal)
    entries = deps.journal.entries_if_readable()
    passed: list[tuple[str, str]] = []
    failures: list[InnoscopeError] = []
    for backend in _candidates(generation, backends, passed):
        new = catalog.raws(backend, toggle, value)
        held_up = _unusable(checks.server_verdicts(target, facts, backend.kind), backend)
        try:
            if held_up is not None:
                raise ChangeRefused(str(held_up.reason), remedy=held_up.remedy)
            with closing(deps.writer(backend.kind, target, account)) as writer:
                steps = tuple(writer.prepare(backend, new))
        except InnoscopeError as error:
            passed.append((backend.kind, error.what))
            failures.append(error)
            continue
        change = checks.Change(toggle.name, toggle.domain, value, backend, steps)
        return ChangePlan(
            toggle=toggle,
            value=value,
            backend=backend,
            steps=steps,
            verdicts=checks.verdicts(target, facts, change, entries),
            warnings=tuple(_warnings(toggle, backend, steps, facts.cluster)),
            passed=tuple(passed),
        )
    raise _no_backend(toggle, target, passed, failures)


def _candidates(
    generation: ToggleGeneration, asked: Sequence[str] | None, passed: list[tuple[str, str]]
) -> Iterator[Backend]:
    """Yield the backends to try, and add rejected ones to ``passed`` with the reasons."""
    for kind in asked or dict.fromkeys(backend.kind for backend in generation.backends):
        backends = [backend for backend in generation.backends if backend.kind == kind]
        if kind in generation.never:
            passed.append((kind, generation.never[kind]))
        elif not backends:
            passed.append((kind, generation.refused or "the catalog has no such backend for these servers"))
        else:
            yield from backends


def _unusable(verdicts: Sequence[ToggleVerdict], backend: Backend) -> ToggleVerdict | None:
    """Return the failed check that rules out the backend, or None.

    For example, the SQL backend is ruled out if the server is stopped, because the server would not reply.
    """
    names = {"identity"}
    if backend.kind == "sql":
        names |= {"not_stopped", "serving"}
    else:
        names |= {"rights", "ptrace_policy"}
    return next((verdict for verdict in verdicts if not verdict.ok and verdict.check in names), None)


def _warnings(
    toggle: Toggle, backend: Backend, steps: Sequence[ChangeStep], cluster: str | None
) -> Iterator[str]:
    if toggle.also:
        yield toggle.also
    if backend.note:
        yield backend.note
    if cluster and toggle.cluster:
        yield f"this server is {cluster}: {toggle.cluster}"
    if all(same(step.old, step.new) for step in steps):
        yield "it already has this value: nothing would change"


def _no_backend(
    toggle: Toggle, target: Target, passed: Sequence[tuple[str, str]], failures: Sequence[InnoscopeError]
) -> InnoscopeError:
    """Return the error to raise if no backend works: the only backend's error, or one with all reasons."""
    if len(failures) == 1 and len(passed) == 1:
        return failures[0]
    reasons = "; ".join(f"{kind}: {reason}" for kind, reason in passed)
    shown = ".".join(map(str, target.version)) or "of unknown version"
    only_absent = all(isinstance(error, NotOnThisServer) for error in failures)
    kind = NotOnThisServer if only_absent else ChangeRefused
    remedies = "\n".join(dict.fromkeys(error.remedy for error in failures if error.remedy))
    return kind(
        f"cannot set {toggle.name} on {target.flavour} {shown}: {reasons or 'the catalog has no backend'}",
        remedy=remedies or f"innoscope toggle show {toggle.name}",
    )
