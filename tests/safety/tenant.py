"""A tenant of a container: a fake server process named mysqld, with a uid that is allowed by default.

The tenant runs in its own pid namespace, below the test's pid namespace. Commands in the test's namespace
find no other server.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from innoscope.target.proc import ProcFs
from servers import Keeper

UID = 999
_UNSHARE = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
_BOUND_S = 600
_START_S = 20


class Tenant:
    """A running tenant. Commands with the prefix ``under`` find no other server.

    ``folder`` must be accessible to all users. If ``hidden``, the socket is in a mount of the container, at a
    path that does not exist outside.
    """

    def __init__(self, folder: Path, asked: str, *, hidden: bool = False) -> None:
        self.socket = folder / "run" / "s.sock"
        self._executable = folder / "mysqld"
        self._asked, self._hidden = asked, hidden
        self._keeper = Keeper()

    def __enter__(self) -> Tenant:
        self.socket.parent.mkdir()
        self.socket.parent.chmod(0o777)
        fake = self.socket.parent.parent / "fake_server.py"
        shutil.copy2(Path(__file__).with_name("fake_server.py"), fake)
        shutil.copy2(Path(__file__).with_name("fake_server.pem"), fake.with_suffix(".pem"))
        shutil.copy2(Path(sys.executable).resolve(), self._executable)
        host = subprocess.Popen([*_UNSHARE, "sleep", str(_BOUND_S)])
        self._keeper.watch(host.pid)
        self.under = ["nsenter", f"--target={self._child(host.pid)}", "--pid", "--mount", "--"]
        mount = f"mount -t tmpfs -o mode=777 tenant {self.socket.parent} && " if self._hidden else ""
        become = f"setpriv --reuid={UID} --regid={UID} --clear-groups --inh-caps=-all"
        serve = (
            f"{self._executable} {fake} --socket {self.socket} --first {self._asked} --asked {self._asked}"
        )
        self._process = subprocess.Popen(
            [*self.under, *_UNSHARE, "sh", "-c", f"{mount}exec {become} {serve}"],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._keeper.watch(self._process.pid)
        assert self._process.stdout is not None
        assert self._process.stdout.readline().startswith("ready")
        return self

    def __exit__(self, *_: object) -> None:
        self._keeper.close()

    @property
    def pid(self) -> int:
        """Return the tenant's pid in the namespace of ``under``."""
        return int(ProcFs().status(self._our_pid())["NSpid"].split()[-2])

    def stop(self) -> list[bytes]:
        """Kill the tenant and return what it received over each connection.

        The tenant serves connections one after another: when it greets a last one, it has printed the others.
        """
        pid = self._our_pid()
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(f"/proc/{pid}/root{self.socket}")
            assert last.recv(1)
            os.kill(pid, signal.SIGKILL)
        assert self._process.stdout is not None
        return [bytes.fromhex(json.loads(line)) for line in self._process.stdout]

    def _our_pid(self) -> int:
        proc = ProcFs()
        for pid in proc.pids():
            try:
                if proc.exe(pid)[0] == str(self._executable):
                    return pid
            except (ProcessLookupError, PermissionError):
                continue
        raise AssertionError("the tenant has exited")

    @staticmethod
    def _child(pid: int) -> int:
        """Return the pid of the child that ``unshare`` has started in the new namespaces."""
        deadline = time.monotonic() + _START_S
        while not (found := Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return int(found[0])
