"""A fake server that stores its settings in a file, to simulate faults that a real server cannot produce.

Like a server's memory, the file survives the process that writes to it. A real process, ``sleep``, acts as
the server's process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from innoscope.common.versions import VersionRange
from innoscope.target.credentials import LoginOptions
from innoscope.target.discover import identify
from innoscope.target.proc import ProcFs
from innoscope.toggles import catalog, engine, status_file
from innoscope.toggles.dependencies import Dependencies
from innoscope.toggles.facts import Facts
from innoscope.toggles.journal import Journal
from innoscope.toggles.journal_format import JournalEntry, ServerId
from innoscope.toggles.model import (
    Assignment,
    Backend,
    ChangeStep,
    Domain,
    NotOnThisServer,
    Risk,
    Toggle,
    ToggledVariable,
    ToggleGeneration,
)
from innoscope.toggles.paths import boot_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from innoscope.target.model import Target
    from innoscope.toggles.model import ChangePlan, Raw

ACCOUNT = LoginOptions()
BEFORE = {"spin": 30, "delay": 6}
AFTER = {"spin": 7, "delay": 7}
SPIN = ToggledVariable("spin", "unsigned", 8, (0, 1000))
DELAY = ToggledVariable("delay", "unsigned", 8, (0, 1000))
MEMORY = Backend("memory", (Assignment(SPIN), Assignment(DELAY)), note="both at once")
SQL = Backend("sql", (Assignment(SPIN), Assignment(DELAY)))


def toggle(name: str = "spin", *backends: Backend, **changes: Any) -> Toggle:
    generation = ToggleGeneration("mysql", VersionRange.parse("5.5+"), backends or (SQL, MEMORY))
    made = Toggle(
        name, "Spinning", "what it is", Risk.HARMLESS, Domain(low=0, high=500), (generation,), also="CPU"
    )
    return replace(made, **changes)


@dataclass
class World:
    """The server, its journal, and the behavior of its writers."""

    folder: Path
    process: subprocess.Popen[bytes]
    toggles: dict[str, Toggle] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    broken: dict[str, Exception] = field(default_factory=dict)  # errors that ``prepare`` raises, by backend
    on_write: Callable[[ChangeStep], None] = lambda _: None
    after_write: Callable[[ChangeStep], None] = lambda _: None
    armed: list[str] = field(default_factory=list)
    disarmed: list[str] = field(default_factory=list)

    @property
    def target(self) -> Target:
        found = identify(ProcFs(), self.process.pid)
        return replace(found, flavour="mysql", version=(5, 6, 24), version_from="memory")

    @property
    def journal(self) -> Journal:
        return Journal(self.folder / "state")

    @property
    def deps(self) -> Dependencies:
        return Dependencies(
            journal=self.journal,
            toggles=lambda: self.toggles,
            writer=lambda kind, *_: FileWriter(kind, self),
            facts=lambda target, journal: self.facts_of(target, journal),
            expiry=self,
            publish=lambda journal: status_file.publish(journal, self.folder / "toggles.json"),
        )

    def facts_of(self, target: Target, journal: Journal) -> Facts:
        made = Facts(target.start_time, target.build_id, boot_id(), journal_problem=journal.problem())
        return replace(made, **self.facts)

    def arm(self, entry: JournalEntry, *_: object) -> None:
        self.armed.append(entry.id)

    def disarm(self, ident: str) -> None:
        self.disarmed.append(ident)

    @property
    def values(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "server.json").read_text())
        return found

    def set(self, **values: Any) -> None:
        (self.folder / "server.json").write_text(json.dumps(self.values | values))

    def plan(
        self, value: str = "7", *, name: str = "spin", backends: Sequence[str] | None = None
    ) -> ChangePlan:
        return engine.plan(self.target, name, value, account=ACCOUNT, backends=backends, deps=self.deps)


class FileWriter:
    """A writer that changes the file instead of a server."""

    def __init__(self, kind: str, world: World) -> None:
        self.kind = kind
        self._world = world

    def prepare(self, backend: Backend, new: Sequence[Raw | None]) -> tuple[ChangeStep, ...]:
        if self.kind in self._world.broken:
            raise self._world.broken[self.kind]
        values = self._world.values
        found = ((one.setting.name, raw) for one, raw in zip(backend.assignments, new, strict=True))
        return tuple(ChangeStep(name, values[name], raw) for name, raw in found)

    def read(self, step: ChangeStep) -> Raw:
        found: Raw = self._world.values[step.setting]
        return found

    def write(self, step: ChangeStep) -> None:
        self._world.on_write(step)
        if step.new is not None:
            self._world.set(**{step.setting: step.new})
        self._world.after_write(step)

    def close(self) -> None:
        return None


@contextmanager
def made_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Yield a fake server with the settings spin=30 and delay=6, and a catalog with one toggle for both."""
    monkeypatch.setattr(catalog, "generation", _generation)
    monkeypatch.setattr(
        catalog, "raws", lambda backend, _toggle, value: tuple(int(value) for _ in backend.assignments)
    )
    monkeypatch.setattr(catalog, "spoken", lambda _backend, _toggle, raws: "/".join(map(str, raws)))
    (folder / "server.json").write_text('{"spin": 30, "delay": 6}')
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            yield World(folder, process, {"spin": toggle()})
        finally:
            process.kill()


@pytest.fixture
def world(memory_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with made_up(memory_folder, monkeypatch) as world:
        yield world


def apply(world: World, value: str = "7", name: str = "spin", **more: Any) -> JournalEntry:
    plan = world.plan(value, name=name)
    return engine.apply(world.target, plan, who="ann", deps=world.deps, account=ACCOUNT, **more)


def undo(world: World, which: str | None = None, **more: Any) -> JournalEntry:
    return engine.undo(world.target, which, account=ACCOUNT, who="bob", deps=world.deps, **more)


def outcomes(world: World) -> list[str]:
    return [entry.outcome for entry in world.journal.entries()]


def _generation(found: Toggle, _flavour: str, _version: tuple[int, ...]) -> ToggleGeneration:
    if not found.generations:
        raise NotOnThisServer(f"{found.name} is not on this server")
    return found.generations[0]


def killed_at(name: str, work: Callable[[Callable[[str], None]], object]) -> bool:
    """Run ``work`` in a process that kills itself at a fault point; return whether it reached the point."""

    def fault(reached: str) -> None:
        if reached == name:
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        try:
            work(fault)
        finally:
            os._exit(0)
    return os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


def entry(ident: str = "0a1b2c3d", **changes: Any) -> JournalEntry:
    server = ServerId(7, 99, "boot", "ab", "mysql", (5, 6, 24), "/run/s.sock")
    made = JournalEntry(
        ident,
        1000.0,
        "ann",
        None,
        "spin",
        "7",
        "sql",
        server,
        (ChangeStep("spin", 30, 7), ChangeStep("delay", 6, 7)),
    )
    return replace(made, **changes)


def expanded(names: tuple[str, ...], order: tuple[int, ...] = (0, 1)) -> list[str]:
    """Return the names of all fault points of a change to two settings, in order."""
    head = list(names[: _first_numbered(names)])
    tail = [name for name in names[_first_numbered(names) :] if not name.endswith("-N")]
    numbered = [name for name in names if name.endswith("-N")]
    return head + [name.replace("-N", f"-{number}") for number in order for name in numbered] + tail


def _first_numbered(names: tuple[str, ...]) -> int:
    return next(place for place, name in enumerate(names) if name.endswith("-N"))
