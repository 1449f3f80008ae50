"""Run servers in separate namespaces, and servers whose executable a test can replace."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from servers import Installation, Server, fetch, launch
from servers.run import ENVIRONMENT
from waiting import until

#: Command that creates a container's namespaces: separate mounts, /proc, pids, and users with root mapped.
UNSHARE = (
    "unshare", "--mount", "--pid", "--fork", "--user", "--map-root-user", "--mount-proc", "--kill-child",
)  # fmt: skip
NAMESPACES = "mnt,pid,user"
_START_S = 60


class ContainedServer(Server):
    """A server in separate namespaces. ``pid`` is its pid on the host; inside, the server is process 1."""

    @property
    def pid(self) -> int:
        """Wait until ``unshare`` has a child, and return its pid. Raise RuntimeError if it starts none."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        deadline = time.monotonic() + _START_S
        while not (found := children.read_text().split()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"unshare started nothing: {self.error_log.read_text()}")
            time.sleep(0.01)
        return int(found[0])

    def stop(self, timeout: float = 60) -> int:
        """Stop the server; ``unshare`` then exits, too."""
        if self.running:
            os.kill(self.pid, signal.SIGTERM)
            self.process.wait(timeout)
        return super().stop(timeout)

    def _spawn(self) -> None:
        """Start the server below unshare as root, because no other user is mapped inside."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        for entry in (self.folder.outside.resolve(), *self.folder.outside.resolve().rglob("*")):
            os.lchown(entry, 0, 0)
        command = launch.command(self.installation, self.folder, self.port, self.options)
        command = ["--user=root" if word.startswith("--user=") else word for word in command]
        with self.error_log.open("ab") as log:
            self._process = subprocess.Popen(
                [*UNSHARE, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=ENVIRONMENT,
                start_new_session=True,
            )
        assert self._keeper is not None
        self._keeper.watch(self._process.pid)


def beside(server: ContainedServer) -> list[str]:
    """Return a command prefix that enters the server's namespaces, where only this server is visible."""
    return ["nsenter", f"--target={server.pid}", "--pid", "--mount", "--"]


def beyond_nsenter(process: subprocess.Popen[bytes]) -> int:
    """Return the pid of the process or, if it is nsenter, of its child. Raise RuntimeError if it has none."""
    return until(lambda: _started(process), every_s=0.01)  # the kernel does not signal the start of a child


def _started(process: subprocess.Popen[bytes]) -> int:
    """Return the same pid as ``beyond_nsenter``, but 0 if nsenter has not started its child yet."""
    if Path(f"/proc/{process.pid}/comm").read_text() != "nsenter\n":
        return process.pid
    if children := Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        return int(children[0])
    if process.poll() is not None:
        raise RuntimeError(f"nsenter started nothing: it exited with {process.returncode}")
    return 0


def installed_in(name: str, folder: Path) -> Installation:
    """Install the server in ``folder`` with a copy of the executable and links to all other files."""
    cached = fetch(name)
    own = Installation(cached.spec, folder)
    own.mysqld.parent.mkdir(parents=True)
    for path in (cached.mysqld.parent, cached.home):
        for entry in path.iterdir():
            link = own.home / entry.relative_to(cached.home)
            if not link.exists():
                link.symlink_to(entry)
    own.mysqld.unlink()
    shutil.copy2(cached.mysqld, own.mysqld)
    own.template.symlink_to(cached.template)
    return own
