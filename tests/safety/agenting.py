"""Run a real ``innoscope agent`` on a free port, which watches one server, and parse the agent's replies."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from safety.command import INNOSCOPE
from safety.contained import beyond_nsenter
from servers import Keeper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from servers import Server

#: Maximum duration of a scrape in seconds, even if the server or the sensor fails.
SCRAPE_S = 1.0
_READY_S = 30
_PATIENCE_S = 20
_TEST_NAME = "under test"


@dataclass(frozen=True, slots=True)
class Scrape:
    """One reply of /metrics: ``{(name, sorted labels without server): value}``."""

    seconds: float
    text: str
    values: dict[tuple[str, tuple[tuple[str, str], ...]], float]

    def value(self, name: str, /, **labels: str) -> float | None:
        """Return a value of the server under test or of the agent itself."""
        return self.values.get((f"innoscope_{name}", tuple(sorted(labels.items()))))

    def named(self, name: str) -> dict[tuple[tuple[str, str], ...], float]:
        """Return all series of a name, by their labels."""
        return {labels: value for (one, labels), value in self.values.items() if one == f"innoscope_{name}"}

    def why(self, collector: str) -> str | None:
        """Return the reason why a collector failed; None if it did not fail."""
        reasons = self.named("collector_failure_info")
        return next(
            (dict(labels)["reason"] for labels in reasons if ("collector", collector) in labels), None
        )


class Running:
    """A running agent, as a context manager. It watches only ``server``, under the name "under test"."""

    def __init__(
        self, server: Server, *arguments: object, sensor: Path | None = None, options: Iterable[str] = (),
        by_hand: bool = False, under: Iterable[str] = (), program: Iterable[str] = (INNOSCOPE,),
        own: str = "cpu_budget = 0",
    ) -> None:  # fmt: skip
        self._folder = tempfile.TemporaryDirectory(prefix="innoscope-agent-")
        self.home = Path(self._folder.name)
        self.home.chmod(0o755)
        self.sensor = sensor or self.home / "sensor.sock"
        self._by_hand = by_hand
        config = self.home / "agent.toml"
        inside = server.folder.inside
        config.write_text(
            f"only_named = true\n[own]\n{own}\n"
            f"[[server]]\nname = '{_TEST_NAME}'\nsocket = '{inside}/s.sock'\n" + "\n".join(options)
        )
        self._command = [
            *under, *program, "agent", "--config.file", str(config), "--web.listen-address", "127.0.0.1:0",
            "--sensor-socket", str(self.sensor), *map(str, arguments),
        ]  # fmt: skip
        self._keeper = Keeper()
        self.process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def pid(self) -> int:
        assert self.process is not None
        return beyond_nsenter(self.process)

    @property
    def log(self) -> str:
        """Return the standard error of the agent and of the sensor that it started."""
        return (self.home / "log").read_text()

    def __enter__(self) -> Running:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._keeper.close()
        self._folder.cleanup()

    def start(self, *, wait: bool = True) -> None:
        """Start the agent and wait for READY=1, which the agent sends after its first collection."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready, (self.home / "log").open("ab") as log:
            notify = self.home / "notify"
            notify.unlink(missing_ok=True)
            ready.bind(str(notify))
            notify.chmod(0o777)  # the agent may have become nobody
            ready.settimeout(_READY_S)
            before = len(self.log)
            environment = {} if self._by_hand else {"NOTIFY_SOCKET": str(notify)}
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | environment
            )
            self._keeper.watch(self.process.pid)
            if not wait:
                return
            if self._by_hand:
                self._until_ready(before)
                return
            try:
                assert ready.recv(100) == b"READY=1"
            except TimeoutError as error:
                raise AssertionError(f"not ready within {_READY_S} s:\n{self.log}") from error
            self._learn_port(before)

    def _until_ready(self, before: int) -> None:
        deadline = time.monotonic() + _READY_S
        while not (self._learn_port(before) and self.get("/-/ready")[0] == 200):
            assert self.process is not None
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.05)

    def _learn_port(self, before: int) -> bool:
        match = re.search(r"address=\S+:(\d+) ", self.log[before:])
        self.port = int(match.group(1)) if match else 0
        return match is not None

    def get(self, path: str, **headers: str) -> tuple[int, bytes]:
        """Return status and body of a page over plain HTTP."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request(
                "GET", path, headers={name.replace("_", "-"): text for name, text in headers.items()}
            )
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def scrape(self, **headers: str) -> Scrape:
        """Scrape once; fail if the scrape takes more than SCRAPE_S."""
        began = time.monotonic()
        status, body = self.get("/metrics", **headers)
        seconds = time.monotonic() - began
        assert status == 200, body
        assert seconds < SCRAPE_S, f"a scrape took {seconds:.2f} s"
        return Scrape(seconds, body.decode(), _parsed(body.decode()))

    def until(self, holds: Callable[[Scrape], bool], patience: float = _PATIENCE_S) -> Scrape:
        """Scrape until the condition holds. Each scrape must finish within SCRAPE_S."""
        deadline = time.monotonic() + patience
        while not holds(scrape := self.scrape()):
            assert time.monotonic() < deadline, f"not within {patience} s:\n{scrape.text}\n{self.log}"
            time.sleep(0.3)  # a scrape within this time would reuse the result of the previous collection
        return scrape

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
        code = self.process.wait(10)
        self._keeper.forget(self.process.pid)
        self.process = None
        return code


def falls(before: Scrape, after: Scrape) -> dict[str, tuple[float, float]]:
    """Return the counters that have decreased, as {series: (before, after)}."""
    return {
        f"{name}{dict(labels)}": (before.values[name, labels], value)
        for (name, labels), value in after.values.items()
        if name.endswith(("_total", "_bucket", "_count", "_sum"))
        and value < before.values.get((name, labels), float("-inf"))
    }


def _parsed(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if name != "server"}
            assert sample.labels.get("server", _TEST_NAME) == _TEST_NAME
            found[sample.name, tuple(sorted(labels.items()))] = sample.value
    return found
