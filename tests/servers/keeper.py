"""Clean up processes and directories when the test process exits, even if it is killed.

PR_SET_PDEATHSIG is not sufficient: it fires when the *thread* that forked the server exits, and the kernel
clears it when mysqld changes its user ID. So a small sibling process, the keeper, holds the read end of a
pipe. When our end of the pipe is closed, the keeper kills the registered processes (by pidfd, so never a
reused pid) and removes the registered directories.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

_SCRIPT = Path(__file__).with_name("keeper_main.py")


class Keeper:
    """A handle for the cleanup process. Use it as a context manager, or call ``close()``."""

    def __init__(self) -> None:
        # Without site packages (-I -S), Python starts in 15 ms. A separate session receives no Ctrl-C.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_SCRIPT)],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Keeper:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def watch(self, pid: int) -> None:
        """Kill the child process ``pid`` when the test process exits."""
        self._say("watch", pid)

    def end(self, process: subprocess.Popen[Any]) -> None:
        """Kill and reap a watched process, and stop watching it."""
        process.kill()
        process.wait()
        self.forget(process.pid)

    def forget(self, pid: int) -> None:
        """Stop watching a process that we have reaped."""
        self._say("forget", pid)

    def remove(self, folder: Path) -> None:
        """Remove ``folder`` when the test process exits."""
        self._say("remove", folder)

    def keep(self, folder: Path) -> None:
        """Cancel the removal of ``folder``."""
        self._say("keep", folder)

    def close(self) -> None:
        """End the keeper. It first kills all watched processes and removes the registered directories."""
        if self._process.stdin and not self._process.stdin.closed:
            self._process.stdin.close()
        self._process.wait()

    def _say(self, verb: str, value: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{verb} {value}\n")
        self._process.stdin.flush()
