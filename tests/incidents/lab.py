"""What an incident is, and how one is diagnosed."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from incidents.cures import Cure, Effect, measured
from servers import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servers.launch import Options

    Scene = Callable[[Server], AbstractContextManager[object]]

SECONDS = 6
_ENDS = (0, 18)  # nothing wrong, something found
_PATIENCE_S = 150.0  # for a command that hangs


@dataclass(frozen=True, slots=True)
class Incident:
    """A stall: ``stall`` makes it on the server, ``twin`` is the same load without its cause.

    ``finding`` must be ranked first by the stall, and not be reported of the twin at all. ``consequences``
    are the findings that may stand behind it; where they are told, no others may.

    ``what`` says in a sentence what was done to the server. ``setup`` comes before the stall and the twin
    (data, for example). A scene may yield another server, or a pid, to be looked at; else it is the server
    it was given, as it is when the scene has begun (it may have been started again). ``twin_options`` are
    the twin's, where a setting is the cause. ``arguments`` go to ``innoscope diagnose``.
    """

    name: str
    server: str
    finding: str
    stall: Scene
    twin: Scene
    options: Options = ()
    twin_options: Options | None = None
    what: str = ""
    setup: Callable[[Server], object] | None = None
    seconds: float = SECONDS
    arguments: tuple[str, ...] = ()
    consequences: tuple[str, ...] | None = None
    cure: Cure | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What ``innoscope diagnose --json`` said, ``seconds`` after it was started."""

    record: dict[str, Any]
    seconds: float = 0.0

    @property
    def names(self) -> list[str]:
        """The findings, the worst first."""
        return [finding["name"] for finding in self.record["findings"]]

    @property
    def first(self) -> dict[str, Any]:
        """The finding that is ranked first. Raises AssertionError where nothing was found."""
        assert self.record["findings"], self.record
        found: dict[str, Any] = self.record["findings"][0]
        return found


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is said of the stall and of its twin, and what the cure did."""

    stall: Result
    twin: Result
    effect: Effect | None = None


def diagnose(pid: int, *more: str, seconds: float = SECONDS) -> Result:
    """Run the command as a user would, on one server."""
    command = [*command_for(pid, seconds), "--json", *more]
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        with _killed_after(_PATIENCE_S, process):
            answer = process.stdout.readline()
            took = time.monotonic() - began
            _, complaints = process.communicate()
    assert process.returncode in _ENDS, complaints
    return Result(json.loads(answer), took)


@contextlib.contextmanager
def _killed_after(seconds: float, process: subprocess.Popen[str]) -> Iterator[None]:
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def command_for(pid: int, seconds: float) -> list[str]:
    """``innoscope diagnose`` for that process."""
    innoscope = str(Path(sys.executable).with_name("innoscope"))
    return [innoscope, "diagnose", "--pid", str(pid), "-u", "root", "--seconds", str(seconds)]


@contextlib.contextmanager
def staged(incident: Incident, *, twin: bool = False) -> Iterator[tuple[Server, int]]:
    """The stall, or its twin, on a server of its own; and the pid to look at.

    What Innoscope keeps of toggles is in a folder that goes away.
    """
    options = incident.options
    if twin and incident.twin_options is not None:
        options = incident.twin_options
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="innoscope-"))
        places = {"INNOSCOPE_STATE": folder, "INNOSCOPE_RUN": folder}
        stack.enter_context(mock.patch.dict(os.environ, places))
        server = stack.enter_context(Server(incident.server, options=options))
        if incident.setup is not None:
            incident.setup(server)
        scene = incident.twin if twin else incident.stall
        yield server, _looked_at(stack.enter_context(scene(server)), server)


def _looked_at(yielded: object, server: Server) -> int:
    if isinstance(yielded, int):
        return yielded
    return yielded.pid if isinstance(yielded, Server) else server.pid


def run(incident: Incident) -> Outcome:
    """The stall with its cure, then the twin on another server of the same kind."""
    with staged(incident) as (server, pid):
        stall = diagnose(pid, *incident.arguments, seconds=incident.seconds)
        effect = measured(incident.cure, server, pid) if incident.cure else None
    with staged(incident, twin=True) as (_, pid):
        twin = diagnose(pid, *incident.arguments, seconds=incident.seconds)
    return Outcome(stall, twin, effect)
