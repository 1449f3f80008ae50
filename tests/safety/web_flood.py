"""Flood an agent with bad clients while another client scrapes it as Prometheus does; measure the cost."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from safety.netspace import HERE
from safety.units import Unit
from servers import Keeper

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Sequence

    from safety.netspace import Host

_MAIN = Path(__file__).with_name("web_flood_main.py")
#: Seconds after which Prometheus cancels a scrape by default.
LOST_S = 10.0
_PAUSE_S = 0.2


def memory_limit() -> int:
    """Return the memory limit of the agent's unit in bytes."""
    return Unit.named("agent").memory_max


def peak(pid: int) -> int:
    """Return the peak resident memory since ``reset_peak``, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (found,) = (line for line in lines if line.startswith("VmHWM:"))
    return int(found.split()[1]) << 10


def reset_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


class Scraper(threading.Thread):
    """A client that scrapes five times per second and, like Prometheus, reuses its connection if possible."""

    def __init__(
        self, host: Host, address: str, port: int, headers: dict[str, str], tls: ssl.SSLContext | None
    ) -> None:
        super().__init__(name="scraper")
        self._host, self._address, self._port = host, address, port
        self._headers, self._tls = headers, tls
        self._ended = threading.Event()
        self.seconds: list[float] = []
        self.failed: list[str] = []

    def run(self) -> None:
        connection: http.client.HTTPConnection
        if self._tls is None:
            connection = http.client.HTTPConnection(self._address, self._port, timeout=LOST_S)
        else:
            connection = http.client.HTTPSConnection(
                self._address, self._port, timeout=LOST_S, context=self._tls
            )
        with self._host.entered():
            while not self._ended.is_set():
                began = time.monotonic()
                try:
                    self._scrape(connection)
                    self.seconds.append(time.monotonic() - began)
                except (OSError, http.client.HTTPException, AssertionError) as error:
                    self.failed.append(repr(error))
                    connection.close()
                self._ended.wait(_PAUSE_S)
        connection.close()

    def _scrape(self, connection: http.client.HTTPConnection) -> None:
        reused = connection.sock is not None
        try:
            connection.request("GET", "/metrics", headers=self._headers)
            answer = connection.getresponse()
        except (ConnectionError, http.client.RemoteDisconnected):
            connection.close()
            if not reused:
                raise
            connection.request("GET", "/metrics", headers=self._headers)
            answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200, (answer.status, body[:100])
        assert b"\ninnoscope_mysqld_up{" in body

    def end(self) -> None:
        self._ended.set()
        self.join()


@dataclass
class Flood:
    """The results of a flood, which are complete at the end of the block."""

    outcomes: dict[str, int] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    peak: int = 0


@contextmanager
def flood(
    pid: int, port: int, host: Host, kind: str, *, seconds: float, count: int,
    sources: Sequence[str], scraped_from: Host | None = None, address: str = HERE,
    headers: dict[str, str] | None = None, tls: ssl.SSLContext | None = None,
) -> Iterator[Flood]:  # fmt: skip
    """Run bad clients and the scraper, and enter the block once all clients have been started."""
    result = Flood()
    reset_peak(pid)
    scraper = Scraper(scraped_from or host, address, port, headers or {}, tls)
    command = [*host.prefix, sys.executable, _MAIN, kind, address, port, seconds, count, *sources]
    with (
        Keeper() as keeper,
        subprocess.Popen(
            list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        keeper.watch(process.pid)
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "go\n"
            scraper.start()
            yield result
            outcomes = process.stdout.readline()
        finally:
            keeper.end(process)
            with suppress(RuntimeError):  # the thread was not started
                scraper.end()
    result.outcomes = json.loads(outcomes)
    result.seconds, result.failed, result.peak = scraper.seconds, scraper.failed, peak(pid)


def exchange(host: Host, port: int, raw: bytes, *, address: str = HERE, patience: float = LOST_S) -> bytes:
    """Send ``raw``; return what the agent sends until it disconnects or is silent for ``patience``."""
    with host.entered(), socket.create_connection((address, port), patience) as wire:
        with suppress(OSError):  # the agent closed the connection before reading all
            wire.sendall(raw)
            wire.shutdown(socket.SHUT_WR)
        found = b""
        with suppress(ConnectionResetError, TimeoutError):
            while part := wire.recv(1 << 16):
                found += part
        return found


def get(
    host: Host, port: int, path: str, *, address: str = HERE, method: str = "GET", **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    """Return status, body and headers of a page over plain HTTP. ``path`` is sent unchanged."""
    lines = {"Host": f"{address}:{port}", "Connection": "close"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    raw = exchange(host, port, f"{method} {path} HTTP/1.1\r\n{text}\r\n".encode("latin-1"), address=address)
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *rest = head.decode("latin-1").split("\r\n")
    received = dict(line.split(": ", 1) for line in rest)
    return int(first.split()[1]), body, received
