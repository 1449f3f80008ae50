"""Build and run an OpenTelemetry Collector from its Go modules, pinned in tests/collector/go.sum.

tests/collector/main.go contains what the Collector's builder (ocb) generates for two components: the receiver
of OTLP, and the exporter to another receiver of OTLP/HTTP.
"""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path
from typing import Self

import gotools
from servers import cache, free_port
from waiting import until

_HOME = Path(__file__).parent / "collector"
#: The Collector accepts profiles only with this option, because the signal is in development.
_PROFILES = "--feature-gates=service.profilesSupport"


def binary() -> Path:
    """Return the path of the Collector in the cache; build it, with Go 1.26, if this version is missing."""

    def build(folder: Path) -> None:
        gotools.go("build", "-trimpath", "-ldflags=-s -w", "-o", str(folder / "collector"), ".", folder=_HOME)

    version = cache.sha256(_HOME / "go.sum")[:12] + cache.sha256(_HOME / "main.go")[:4]
    return gotools.cached(f"otel-collector-{version}", build) / "collector"


class Collector:
    """Context manager: a Collector that sends what it receives to ``url``, in JSON."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        pipeline = {"receivers": ["otlp"], "exporters": ["otlp_http"]}
        config = {
            "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"127.0.0.1:{self.port}"}}}},
            "exporters": {
                "otlp_http": {"endpoint": url, "encoding": "json", "sending_queue": {"enabled": False}}
            },
            "service": {
                "telemetry": {"metrics": {"level": "none"}},
                "pipelines": {"metrics": pipeline, "logs": pipeline, "profiles": pipeline},
            },
        }
        (folder / "collector.yaml").write_text(json.dumps(config))  # JSON is YAML
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start the Collector, and wait until it listens."""
        command = [str(binary()), "--config", f"file:{self._folder / 'collector.yaml'}", _PROFILES]
        with (self._folder / "collector.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        until(self._listens, lambda: self.log, within_s=60)

    def kill(self) -> None:
        """Kill the Collector with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def log(self) -> str:
        """Return what the Collector wrote."""
        return (self._folder / "collector.log").read_text()

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0
