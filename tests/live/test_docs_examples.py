"""Test that the commands in README.md and docs/ run, and that they print what the page shows."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from live.examples import AGENT, Example, Scene, There, difference, examples, placed
from live.staging import LOADS, server_options
from safety.agenting import Running
from safety.command import DEADLINE_S, INNOSCOPE
from safety.sensing import Sensing
from servers import Server

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
#: Pages that must have examples.
NEEDED = ("README.md", "cli.md", "toggles.md", "self-profile.md", "trace.md", "profile.md", "symbols.md")
EXAMPLES = sorted(
    (example for page in PAGES for example in examples(page)), key=lambda example: repr(example.scene)
)


class Stage:
    """The server and the loads of the current scene, and a working directory."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._scene: Scene | None = None
        self.there = There(0, "", 0, "")
        self.folder = Path()

    def set(self, scene: Scene) -> None:
        if scene == self._scene:
            return
        self.close()
        self._stack, self._scene = ExitStack(), scene
        options = [option for name, _ in scene.loads if name != AGENT for option in server_options(name)]
        server = self._stack.enter_context(Server(scene.server, options=options))
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="innoscope-docs-")))
        for name, count in scene.loads:
            if name != AGENT:
                self._stack.enter_context(LOADS[name](server, count))
        agent, sensor = self._agent(server) if scene.agent else (None, None)
        self.there = There(
            server.pid,
            str(server.socket),
            server.port,
            os.path.realpath(f"/proc/{server.pid}/exe"),
            str(self.folder / "symbols"),
            agent,
            sensor,
        )

    def _agent(self, server: Server) -> tuple[int, int]:
        sensing = self._stack.enter_context(Sensing("--no-probes", only=[server]))
        agent = self._stack.enter_context(Running(server, sensor=sensing.path))
        ended = threading.Event()

        def request() -> None:
            while not ended.is_set():
                agent.get("/")

        requests = threading.Thread(target=request)
        requests.start()
        self._stack.callback(requests.join)
        self._stack.callback(ended.set)
        return agent.pid, sensing.pid

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run the command in a shell without a terminal, with separate directories for Innoscope's files."""
        places = {
            f"INNOSCOPE_{name}": str(self.folder / name.lower()) for name in ("RUN", "STATE", "SYMBOLS")
        }
        path = f"{Path(INNOSCOPE).parent}:{os.environ['PATH']}"
        return subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
            cwd=self.folder,
            env=os.environ | places | {"PATH": path},
        )

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.close()


@pytest.mark.parametrize("page", [page.name for page in PAGES if page.name in NEEDED])
def test_page_has_examples(page: str) -> None:
    assert [example for example in EXAMPLES if example.place.startswith(f"{page}:")]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.place)
def test_example_prints_what_the_page_shows(example: Example, stage: Stage) -> None:
    stage.set(example.scene)
    command = placed(example.command, stage.there)
    done = stage.run(command)
    output = f"{command}\n{done.stdout}\n{done.stderr}"

    assert done.returncode == example.code, output
    missing = difference(example.shown, done.stdout if done.returncode == 0 else done.stderr + done.stdout)
    assert missing is None, f"no line like {missing!r}:\n{output}"
