"""Read the current values of toggles, with one connection and one symbol lookup for all of them."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from innoscope.common.errors import InnoscopeError
from innoscope.toggles import catalog
from innoscope.toggles.backends.sql import NoLogin
from innoscope.toggles.dependencies import Dependencies
from innoscope.toggles.model import Backend, Learner, NotOnThisServer, ToggledVariable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from innoscope.target.credentials import LoginOptions
    from innoscope.target.model import Target
    from innoscope.toggles.model import Toggle, ToggleGeneration, Writer


@dataclass(frozen=True, slots=True)
class _Source:
    """A backend through which a toggle's value can be read."""

    toggle: Toggle
    backend: Backend


def values(
    target: Target, toggles: Iterable[Toggle], account: LoginOptions, *, deps: Dependencies | None = None
) -> dict[str, str]:
    """Return the current values by toggle name, formatted for display.

    Values that SQL does not provide are read from memory. Toggles that this server does not support, or that
    no backend can read, are omitted.
    """
    deps = deps or Dependencies()
    sources = [source for toggle in toggles for source in _sources(toggle, target)]
    found: dict[str, str] = {}
    for kind in ("sql", "memory"):
        left = [one for one in sources if one.backend.kind == kind and one.toggle.name not in found]
        if left:
            found = _read_all(kind, left, target, account, deps) | found
    return found


def _sources(toggle: Toggle, target: Target) -> Iterator[_Source]:
    try:
        generation = catalog.generation(toggle, target.flavour, target.version)
    except NotOnThisServer:
        return
    for backend in _readable(generation):
        yield _Source(toggle, backend)


def _readable(generation: ToggleGeneration) -> Iterator[Backend]:
    """Yield the backends that can read the value.

    For a memory backend whose settings are all visible as system variables, also yield an SQL backend.
    """
    for backend in generation.backends:
        if backend.kind in generation.never:
            continue
        yield backend
        shown = [one.setting.variable for one in backend.assignments]
        if backend.kind == "memory" and all(shown):
            assignments = zip(backend.assignments, shown, strict=True)
            yield Backend(
                "sql", tuple(replace(one, setting=ToggledVariable(str(name))) for one, name in assignments)
            )


def _read_all(
    kind: str, sources: Sequence[_Source], target: Target, account: LoginOptions, deps: Dependencies
) -> dict[str, str]:
    found: dict[str, str] = {}
    try:
        with closing(deps.writer(kind, target, account)) as writer:
            if isinstance(writer, Learner):
                writer.learn([one.backend for one in sources])
            for one in sources:
                if one.toggle.name not in found and (current := _read_one(writer, one)) is not None:
                    found[one.toggle.name] = current
    except InnoscopeError:
        pass  # another backend may have the missing values
    return found


def _read_one(writer: Writer, source: _Source) -> str | None:
    """Return the toggle's value, or None if it cannot be read. Raise NoLogin if no toggle can be read."""
    backend = source.backend
    try:
        steps = writer.prepare(backend, [None] * len(backend.assignments))
    except NoLogin:
        raise
    except InnoscopeError:
        return None
    return catalog.spoken(backend, source.toggle, [step.old for step in steps])
