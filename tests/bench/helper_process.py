"""Run helper processes, which reply with one line of JSON to each line of input."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

from servers import Keeper

_TESTS = Path(__file__).resolve().parent.parent

#: Maximum seconds for one reply.
_PATIENCE = 120.0


class HelperError(RuntimeError):
    """The error for a benchmark's helper process or command that failed."""


class Helper:
    """Context manager that runs ``python -m bench.MODULE`` and kills it at the end of the block.

    At the start of the block, the helper is ready. Raise HelperError if it exits or does not become ready.
    """

    def __init__(self, module: str, *arguments: str) -> None:
        self._module = module
        self._keeper = Keeper()
        self._pending = b""
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"bench.{module}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": str(_TESTS)},
            start_new_session=True,
        )
        self._keeper.watch(self._process.pid)

    def __enter__(self) -> Self:
        try:
            self._reply(_PATIENCE)  # the helper sends a reply as soon as it is ready
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._keeper.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def command(self, line: str, patience: float = _PATIENCE) -> Any:
        """Send a command; return the reply. Raise HelperError if none arrives within ``patience`` seconds."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n".encode())
        except BrokenPipeError as error:
            raise HelperError(f"bench.{self._module} has exited") from error
        return self._reply(patience)

    def _reply(self, patience: float) -> Any:
        assert self._process.stdout is not None
        deadline = time.monotonic() + patience
        while b"\n" not in self._pending:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                raise HelperError(f"no answer from bench.{self._module} within {patience:.0f} s")
            if not (piece := os.read(self._process.stdout.fileno(), 1 << 16)):
                raise HelperError(f"bench.{self._module} exited with {self._process.wait()}")
            self._pending += piece
        line, _, self._pending = self._pending.partition(b"\n")
        return json.loads(line)


def next_command(timeout: float | None) -> list[str] | None:
    """Return the words of the helper's next command, [] after ``timeout``, None if the parent has exited.

    The parent sends the next command only after the reply, so one read returns exactly one line.
    """
    ready, _, _ = select.select([0], [], [], timeout)
    if not ready:
        return []
    line = os.read(0, 4096)
    return line.decode().split() or None


def reply(value: object) -> None:
    """Print the helper's reply to a command as one line of JSON."""
    print(json.dumps(value), flush=True)
