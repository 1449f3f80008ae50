"""Set and undo every toggle on one server with each backend; read the values without the toggle engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from innoscope import _native
from innoscope.toggles import catalog
from innoscope.toggles.model import NotOnThisServer, same
from live.changing import Changer, other_value, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from innoscope.toggles.model import Backend, Raw, Toggle, ToggleGeneration
    from servers import Server


@dataclass(frozen=True, slots=True)
class Run:
    """A toggle that was set and undone with one backend: its values, and its settings' values."""

    toggle: str
    backend: str
    values: str  # before → read back → undone
    settings: tuple[str, ...]
    witness: str


@dataclass(frozen=True, slots=True)
class Absent:
    """The reason why the server lacks a toggle (``none``), or why a backend is refused (``never``)."""

    toggle: str
    kind: Literal["none", "never"]
    why: str


class Broken(AssertionError):
    """The error for server values that differ from those that the toggle engine reported."""


def run(server: Server, folder: Path) -> Iterator[Run | Absent]:
    """Yield the results of all toggles, in the catalog's order. Raise Broken or a toggle engine error."""
    changer = Changer(server, folder)
    for toggle in catalog.load().values():
        try:
            generation = catalog.generation(toggle, changer.target.flavour, changer.target.version)
        except NotOnThisServer as error:
            yield Absent(toggle.name, "none", error.what.split(": ", 2)[-1])
            continue
        for backend in generation.backends:
            yield _flip(changer, toggle, backend, Witness(server, generation, backend))
        for kind, why in generation.never.items():
            yield Absent(toggle.name, "never", f"{kind}: {why}")


class Witness:
    """A reader of the settings that a backend changes. It does not use the toggle engine."""

    def __init__(self, server: Server, generation: ToggleGeneration, backend: Backend) -> None:
        self._server = server
        self._variables = _variables(generation, backend)
        self._symbols = [one.setting.name for one in backend.assignments]
        self.kind = "SQL" if self._variables else "memory"

    def read(self) -> list[Raw]:
        """Return the current value of each setting that the backend changes."""
        if self._variables:
            return shown(self._server, self._variables)
        places = _native.symbol_in_process(self._server.pid, self._symbols)
        return [self._number(places[name]) for name in self._symbols]

    def _number(self, place: _native.Symbol) -> int:
        return int.from_bytes(_native.read_memory(self._server.pid, place.address, place.size), "little")


def _variables(generation: ToggleGeneration, backend: Backend) -> list[str]:
    """Return the system variables of the settings; empty if one of the settings has no variable."""
    of_sql = {
        one.setting.name for each in generation.backends if each.kind == "sql" for one in each.assignments
    }
    names = []
    for one in backend.assignments:
        name = one.setting.name if one.setting.name in of_sql else one.setting.variable
        if name is None:
            return []
        names.append(name)
    return names


def _flip(changer: Changer, toggle: Toggle, backend: Backend, witness: Witness) -> Run:
    before = witness.read()
    before_value = catalog.spoken(backend, toggle, before)
    if changer.now(toggle) != before_value:
        raise Broken(f"{toggle.name} is {before_value}, and the engine says {changer.now(toggle)}")
    value = other_value(toggle, before_value)
    entry = changer.set(toggle.name, value, backend=backend.kind)
    meanwhile = witness.read()
    changer.undo(entry)
    after = witness.read()
    if entry.backend != backend.kind or catalog.spoken(backend, toggle, meanwhile) != value:
        raise Broken(f"{toggle.name} {value} by {backend.kind}: read back {meanwhile}")
    if not all(map(same, before, after)):
        raise Broken(f"{toggle.name} by {backend.kind} was {before}, undone it is {after}")
    return Run(
        toggle.name,
        backend.kind,
        f"{before_value} → {value} → {catalog.spoken(backend, toggle, after)}",
        _changes(backend, before, meanwhile, after),
        witness.kind,
    )


def _changes(backend: Backend, *read: Sequence[Raw]) -> tuple[str, ...]:
    return tuple(
        f"`{one.setting.name}`: {' → '.join(map(str, raws))}"
        for one, *raws in zip(backend.assignments, *read, strict=True)
    )
