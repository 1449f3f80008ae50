"""Reproduce and diagnose incidents."""

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
_ENDS = (0, 18)  # exit codes without and with findings
_PATIENCE_S = 150.0  # limit for a command that hangs


@dataclass(frozen=True, slots=True)
class Incident:
    """A stall: ``stall`` causes it on the server, and ``twin`` is the same load without the cause.

    ``finding`` must be the first finding of the stall, and must not be reported for the twin.
    ``consequences`` are the only other findings allowed, if given. ``also`` are findings that must also be
    reported for the stall, and must not be reported for the twin.

    ``what`` describes the cause in one sentence. ``setup`` runs before the stall and before
    the twin, for example to create data. A scene may yield another server or a pid to diagnose; by default,
    the scene's own server is diagnosed, which the scene may have restarted. If a setting is the cause,
    ``twin_options`` replace ``options`` for the twin. ``arguments`` are passed to ``innoscope diagnose``.
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
    also: tuple[str, ...] = ()
    cure: Cure | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """The output of ``innoscope diagnose --json``, and the ``seconds`` from its start to its output."""

    record: dict[str, Any]
    seconds: float = 0.0

    @property
    def names(self) -> list[str]:
        """Return the findings, the worst first."""
        return [finding["name"] for finding in self.record["findings"]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of the stall and of its twin, and the effect of the cure."""

    stall: Result
    twin: Result
    effect: Effect | None = None


def diagnose(pid: int, *more: str, seconds: float = SECONDS) -> Result:
    """Run ``innoscope diagnose`` on one server, as a user would."""
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
    """Return the ``innoscope diagnose`` command for that process."""
    innoscope = str(Path(sys.executable).with_name("innoscope"))
    return [innoscope, "diagnose", "--pid", str(pid), "-u", "root", "--seconds", str(seconds)]


@contextlib.contextmanager
def staged(incident: Incident, *, twin: bool = False) -> Iterator[tuple[Server, int]]:
    """Run the stall or its twin on a new server; yield the server and the pid to diagnose.

    Innoscope's journal of toggles is in a temporary folder.
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
        yield server, _pid_to_diagnose(stack.enter_context(scene(server)), server)


def _pid_to_diagnose(yielded: object, server: Server) -> int:
    if isinstance(yielded, int):
        return yielded
    return yielded.pid if isinstance(yielded, Server) else server.pid


def run(incident: Incident) -> Outcome:
    """Diagnose the stall and apply its cure, then diagnose the twin on another server of the same kind."""
    with staged(incident) as (server, pid):
        stall = diagnose(pid, *incident.arguments, seconds=incident.seconds)
        effect = measured(incident.cure, server, pid) if incident.cure else None
    with staged(incident, twin=True) as (_, pid):
        twin = diagnose(pid, *incident.arguments, seconds=incident.seconds)
    return Outcome(stall, twin, effect)
