"""What an incident is, and how one is diagnosed."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servers import Server

if TYPE_CHECKING:
    from collections.abc import Callable

    Scene = Callable[[Server], AbstractContextManager[object]]

SECONDS = 6
_ENDS = (0, 18)  # nothing wrong, something found


@dataclass(frozen=True, slots=True)
class Incident:
    """A stall: ``stall`` makes it on the server, ``twin`` is the same load without its cause.

    ``finding`` must be ranked first by the stall, and not be reported of the twin at all.
    """

    name: str
    server: str
    finding: str
    stall: Scene
    twin: Scene
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """What ``innoscope diagnose --json`` said."""

    record: dict[str, Any]

    @property
    def names(self) -> list[str]:
        """The findings, the worst first."""
        return [finding["name"] for finding in self.record["findings"]]

    @property
    def first(self) -> dict[str, Any]:
        """The finding that is ranked first."""
        found: dict[str, Any] = self.record["findings"][0]
        return found


def diagnose(pid: int, *more: str, seconds: float = SECONDS) -> Result:
    """Run the command as a user would, on one server."""
    command = [
        str(Path(sys.executable).with_name("innoscope")), "diagnose", "--pid", str(pid), "-u", "root",
        "--seconds", str(seconds), "--json", *more,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in _ENDS, done.stderr
    return Result(json.loads(done.stdout))


def run(incident: Incident) -> tuple[Result, Result]:
    """What is said of the stall, and of its twin on another server of the same kind."""
    results = []
    for scene in (incident.stall, incident.twin):
        with ExitStack() as stack:
            server = stack.enter_context(Server(incident.server, options=incident.options))
            stack.enter_context(scene(server))
            results.append(diagnose(server.pid))
    stall, twin = results
    return stall, twin
