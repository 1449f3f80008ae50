"""Start a real ``innoscope sensor`` and wait until it is ready, as systemd does."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from innoscope.common.samples import by_series
from innoscope.daemon.protocol.client import SensorClient
from innoscope.target.discover import find_one
from safety.command import INNOSCOPE
from safety.contained import beyond_nsenter
from servers import Keeper

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from innoscope.common.samples import Outcome, Value
    from innoscope.daemon.protocol.messages import Reply, ServerReply
    from servers import Server

_READY_S = 60


class Sensing:
    """A running sensor, as a context manager. ``client`` queries it; ``kill()`` and ``start()`` restart it.

    If ``only`` is set, the sensor watches only these servers, because probes on others would delay its exit.
    """

    def __init__(
        self,
        *arguments: object,
        only: Sequence[Server] = (),
        under: Sequence[str] = (),
        path: Path | None = None,
        program: Sequence[str] = (INNOSCOPE,),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="innoscope-sensor-")
        self._home = Path(self._folder.name)
        self._home.chmod(0o755)
        self.path = path or self._home / "run" / "sensor.sock"
        places = [text for server in only for text in ("--only", str(find_one(server.pid).socket))]
        self._arguments = [
            *under, *program, "sensor", "--sensor-socket", str(self.path), *places, *map(str, arguments)
        ]  # fmt: skip
        self._environment = dict(environment or {})
        self._keeper = Keeper()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def client(self) -> SensorClient:
        """Return a client with a long timeout; tests check how long a reply may take."""
        return SensorClient(str(self.path), timeout=10)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return beyond_nsenter(self.process)

    @property
    def log(self) -> str:
        """Return the sensor's standard error."""
        return (self._home / "log").read_text()

    def __enter__(self) -> Sensing:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._keeper.close()
        self._folder.cleanup()

    def start(self, *, wait: bool = True) -> None:
        """Start the sensor and wait for READY=1, which the sensor sends after its first discovery."""
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready,
            (self._home / "log").open("ab") as log,
        ):
            notify = self._home / "notify"
            notify.unlink(missing_ok=True)
            ready.bind(str(notify))
            notify.chmod(0o777)  # the sensor may run as another user
            ready.settimeout(_READY_S)
            self.process = subprocess.Popen(
                self._arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {"NOTIFY_SOCKET": str(notify)} | self._environment,
            )
            self._keeper.watch(self.process.pid)
            if not wait:
                return
            try:
                assert ready.recv(100) == b"READY=1"
            except TimeoutError as error:
                raise AssertionError(f"not ready within {_READY_S} s:\n{self.log}") from error

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
        code = self.process.wait()
        self._keeper.forget(self.process.pid)
        self.process = None
        return code


def of_pid(reply: Reply, pid: int) -> ServerReply | None:
    """Return the reply for that pid, because the sensor may also watch servers of other tests."""
    return next((server for server in reply.servers if server.target.pid == pid), None)


def outcome(server: ServerReply, collector: str) -> Outcome:
    """Return the outcome of a collector. Fail if the collector did not run."""
    return next(one for one in server.outcomes if one.collector == collector)


def values(server: ServerReply, collector: str) -> dict[tuple[str, tuple[str, ...]], Value]:
    """Return the series of a collector. Fail with its reason if it did not succeed."""
    found = outcome(server, collector)
    assert found.success, found.reason
    return by_series(found.samples)
