"""Nothing outlives the test process, not even when it is killed with SIGKILL.

PR_SET_PDEATHSIG would be simpler, but it fires when the *thread* that forked ends, and the kernel clears it
when mysqld changes its user. So a small sibling process holds the read end of a pipe: when our end closes,
for whatever reason, it kills what we had it watch (by pidfd, so never a reused pid) and removes our folders.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_SCRIPT = Path(__file__).with_name("keeper_main.py")


class Keeper:
    """The handle on one such process. Use it as a context manager, or call ``close()``."""

    def __init__(self) -> None:
        # -I -S: no site packages, so it starts in 15 ms; a session of its own, so Ctrl-C does not reach it.
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
        """Kill this process, our child, should we die."""
        self._say("watch", pid)

    def forget(self, pid: int) -> None:
        """We have reaped this one ourselves."""
        self._say("forget", pid)

    def remove(self, folder: Path) -> None:
        """Remove this folder should we die."""
        self._say("remove", folder)

    def keep(self, folder: Path) -> None:
        """We have removed this one ourselves."""
        self._say("keep", folder)

    def close(self) -> None:
        """End the keeper. What it still watches then goes with it."""
        if self._process.stdin and not self._process.stdin.closed:
            self._process.stdin.close()
        self._process.wait()

    def _say(self, verb: str, value: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{verb} {value}\n")
        self._process.stdin.flush()
