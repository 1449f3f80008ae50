"""Start a real ``innoscope sensor`` and wait until it is ready, as systemd does."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from innoscope.common.samples import by_series
from innoscope.daemon.protocol.client import SensorClient
from innoscope.target.discover import find_one
from safety.command import INNOSCOPE
from safety.daemon_process import DaemonProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from innoscope.common.samples import Outcome, Value
    from innoscope.daemon.protocol.messages import Reply, ServerReply
    from servers import Server

_READY_S = 60


class Sensing(DaemonProcess):
    """Context manager: a running sensor. ``client`` queries it.

    If ``only`` is set, the sensor watches only these servers, because probes on others would delay its exit.
    """

    #: Maximum time in seconds that ``until`` waits.
    patience_s = 60

    def __init__(
        self,
        *arguments: object,
        only: Sequence[Server] = (),
        under: Sequence[str] = (),
        path: Path | None = None,
        program: Sequence[str] = (INNOSCOPE,),
        environment: Mapping[str, str] | None = None,
        ready_s: float = _READY_S,
    ) -> None:
        super().__init__("sensor", ready_s)
        self.path = path or self.home / "run" / "sensor.sock"
        places = [text for server in only for text in ("--only", str(find_one(server.pid).socket))]
        self._command = [
            *under, *program, "sensor", "--sensor-socket", str(self.path), *places, *map(str, arguments)
        ]  # fmt: skip
        self._environment = dict(environment or {})

    @property
    def client(self) -> SensorClient:
        """Return a client with a timeout of 10 s. Tests that limit reply times measure them themselves."""
        return SensorClient(str(self.path), timeout=10)

    def until(self, server: Server, holds: Callable[[ServerReply], bool]) -> ServerReply:
        """Collect until the server's reply satisfies the condition; return the reply."""
        deadline = time.monotonic() + self.patience_s
        while True:
            reply = of_pid(self.client.collect(), server.pid)
            if reply is not None and holds(reply):
                return reply
            assert time.monotonic() < deadline, f"not within {self.patience_s} s: {reply}\n{self.log}"
            time.sleep(0.05)


def of_pid(reply: Reply, pid: int) -> ServerReply | None:
    """Return the part of the reply about that pid, or None; it may also contain servers of other tests."""
    return next((server for server in reply.servers if server.target.pid == pid), None)


def outcome(server: ServerReply, collector: str) -> Outcome:
    """Return the outcome of a collector. Fail if the collector did not run."""
    return next(one for one in server.outcomes if one.collector == collector)


def values(server: ServerReply, collector: str) -> dict[tuple[str, tuple[str, ...]], Value]:
    """Return the series of a collector. Fail with its reason if it did not succeed."""
    found = outcome(server, collector)
    assert found.success, found.reason
    return by_series(found.samples)
