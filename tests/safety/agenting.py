"""Run a real ``innoscope agent`` that watches one server, and parse the agent's replies."""

from __future__ import annotations

import http.client
import json
import re
import time
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from prometheus_client.parser import text_string_to_metric_families

from innoscope.sampling.profile_history import CHUNK_S
from safety.command import INNOSCOPE
from safety.daemon_process import DaemonProcess
from safety.stopwatch import Stopwatch
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from servers import Server

#: Maximum seconds that a scrape may take, even if the server or the sensor fails.
SCRAPE_S = 1.0
_READY_S = 60
#: Maximum time in seconds until the agent has exited.
_END_S = 10
_PATIENCE_S = 60
#: The first sample of a step can begin this many seconds before the step: a snapshot is taken every second.
_MARGIN_S = 2
_TEST_NAME = "under test"


@dataclass(frozen=True)
class Scrape:
    """One response from /metrics."""

    seconds: float
    text: str

    @cached_property
    def values(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """Return all series: ``{(name, sorted labels without server): value}``.

        They are parsed on first use, because parsing would delay concurrent scrapes in other threads.
        """
        return _parsed(self.text)

    def value(self, name: str, /, **labels: str) -> float | None:
        """Return the value of a series, or None. ``name`` is the metric without ``innoscope_``."""
        return self.values.get((f"innoscope_{name}", tuple(sorted(labels.items()))))

    def named(self, name: str) -> dict[tuple[tuple[str, str], ...], float]:
        """Return all series of a metric, keyed by their labels."""
        return {labels: value for (one, labels), value in self.values.items() if one == f"innoscope_{name}"}

    def why(self, collector: str) -> str | None:
        """Return the reason why a collector failed; None if it did not fail."""
        reasons = self.named("collector_failure_info")
        return next(
            (dict(labels)["reason"] for labels in reasons if ("collector", collector) in labels), None
        )


class Running(DaemonProcess):
    """Context manager: a running agent. It watches only ``server``, under the name "under test"."""

    def __init__(
        self, server: Server, *arguments: object, sensor: Path | None = None, options: Iterable[str] = (),
        by_hand: bool = False, under: Iterable[str] = (), program: Iterable[str] = (INNOSCOPE,),
        own: str = "cpu_budget = 0", ready_s: float = _READY_S, history: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__("agent", ready_s, _END_S, by_hand=by_hand)
        self._environment = dict(environment or {})
        self.sensor = sensor or self.home / "sensor.sock"
        self.history = self.home / "history"
        config = self.home / "agent.toml"
        inside = server.folder.inside
        config.write_text(
            f"only_named = true\n[own]\n{own}\n"
            f"[history]\ndirectory = '{self.history}'\nenabled = {str(history).lower()}\n"
            f"[[server]]\nname = '{_TEST_NAME}'\nsocket = '{inside}/s.sock'\n" + "\n".join(options)
        )
        self._command = [
            *under, *program, "agent", "--config.file", str(config), "--web.listen-address", "127.0.0.1:0",
            "--sensor-socket", str(self.sensor), *map(str, arguments),
        ]  # fmt: skip
        self.port = 0

    def start(self, *, wait: bool = True) -> None:
        """Start the agent, wait until it is ready, and read its port from the log."""
        log = self.home / "log"
        before = len(log.read_text()) if log.exists() else 0
        super().start(wait=wait)
        if wait and self._by_hand:
            self._until_ready(before)
        elif wait:
            self._learn_port(before)

    def _until_ready(self, before: int) -> None:
        deadline = time.monotonic() + self._ready_s
        while not (self._learn_port(before) and self.get("/-/ready")[0] == 200):
            assert self.process is not None
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.05)

    def _learn_port(self, before: int) -> bool:
        match = re.search(r"address=\S+:(\d+) ", self.log[before:])
        self.port = int(match.group(1)) if match else 0
        return match is not None

    def get(self, path: str, timeout_s: float = _PATIENCE_S, /, **headers: str) -> tuple[int, bytes]:
        """Request a page over plain HTTP; return the status and the body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            connection.request(
                "GET", path, headers={name.replace("_", "-"): text for name, text in headers.items()}
            )
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def scrape(self, **headers: str) -> Scrape:
        """Scrape once; fail if this takes more than SCRAPE_S.

        Time lost because other processes or machines use the CPUs does not count (Stopwatch).
        """
        stopwatch = Stopwatch(self.pid)
        status, body = self.get("/metrics", **headers)
        seconds = stopwatch.seconds()
        assert status == 200, body
        assert seconds < SCRAPE_S, f"a scrape took {seconds:.2f} s"
        return Scrape(seconds, body.decode())

    def until(self, holds: Callable[[Scrape], bool], patience: float = _PATIENCE_S) -> Scrape:
        """Scrape until the condition holds. Each scrape must finish within SCRAPE_S."""
        deadline = time.monotonic() + patience
        while not holds(scrape := self.scrape()):
            assert time.monotonic() < deadline, f"not within {patience} s:\n{scrape.text}\n{self.log}"
            time.sleep(0.3)  # a scrape within this time would reuse the result of the previous collection
        return scrape

    def until_recorded(self, patience: float = _PATIENCE_S) -> None:
        """Wait until the agent has fetched the samples of all snapshots taken so far."""
        now = time.time()
        step = now // CHUNK_S * CHUNK_S
        # The samples of a step cover the time from its start to its last snapshot.
        query = urlencode({"server": _TEST_NAME, "from": step, "to": now + patience})

        def observed() -> float:
            status, body = self.get(f"/api/sessions?{query}")
            assert status == 200, body
            return float(json.loads(body)["observed_seconds"])

        until(lambda: observed() > now - step + _MARGIN_S, lambda: self.log, within_s=patience, every_s=0.3)


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
            assert sample.labels.get("server", _TEST_NAME) == _TEST_NAME, sample
            found[sample.name, tuple(sorted(labels.items()))] = sample.value
    return found
