"""Start one of Innoscope's daemons, wait for its READY=1 as systemd does, and end it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Self

from safety.contained import beyond_nsenter
from servers import Keeper

if TYPE_CHECKING:
    from collections.abc import Sequence


class DaemonProcess:
    """Context manager: a running daemon; ``kill()`` and ``start()`` restart it.

    ``ready_s`` and ``end_s`` are the maximum seconds that its start and its exit may take. With ``by_hand``,
    NOTIFY_SOCKET is not set, as when a user starts the daemon in a shell.
    """

    def __init__(
        self, name: str, ready_s: float, end_s: float | None = None, *, by_hand: bool = False
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix=f"innoscope-{name}-")
        self.home = Path(self._folder.name)
        self.home.chmod(0o755)
        self._ready_s, self._end_s = ready_s, end_s
        self._by_hand = by_hand
        self._command: Sequence[str] = ()
        self._environment: dict[str, str] = {}
        self._keeper = Keeper()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return beyond_nsenter(self.process)

    @property
    def log(self) -> str:
        """Return the standard error of the daemon and of its children."""
        return (self.home / "log").read_text()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._keeper.close()
        self._folder.cleanup()

    def start(self, *, wait: bool = True) -> None:
        """Start the daemon; unless it is started by hand, wait for READY=1.

        The sensor sends READY=1 after its first discovery, and the agent after its first collection.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready, (self.home / "log").open("ab") as log:
            notify = self.home / "notify"
            notify.unlink(missing_ok=True)
            ready.bind(str(notify))
            notify.chmod(0o777)  # the daemon may run as another user
            ready.settimeout(self._ready_s)
            told = {} if self._by_hand else {"NOTIFY_SOCKET": str(notify)}
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | told | self._environment,
            )
            self._keeper.watch(self.process.pid)
            if wait and not self._by_hand:
                try:
                    assert ready.recv(100) == b"READY=1"
                except TimeoutError as error:
                    raise AssertionError(f"not ready within {self._ready_s} s:\n{self.log}") from error

    def terminate(self) -> int:
        """Send SIGTERM and return the exit status."""
        assert self.process is not None
        self.process.terminate()
        return self._reap()

    def kill(self) -> None:
        """Send SIGKILL and reap the process."""
        if self.process is not None:
            if self.process.poll() is None:
                os.kill(self.pid, signal.SIGKILL)
            self._reap()

    def _reap(self) -> int:
        assert self.process is not None
        code = self.process.wait(self._end_s)
        self._keeper.forget(self.process.pid)
        self.process = None
        return code
