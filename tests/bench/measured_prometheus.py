"""Measure a real Prometheus server: its CPU time, its memory, and the size of a sample on disk."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING, Any

from bench.proc import cpu_seconds, memory_mb
from prometheus import Prometheus

if TYPE_CHECKING:
    from pathlib import Path

_SERIES = "prometheus_tsdb_head_series"
#: Counter of appended samples. Since Prometheus 2.40, it has one series per sample type (float, histogram),
#: which are added up.
_APPENDED = "prometheus_tsdb_head_samples_appended_total"


class Measured(Prometheus):
    """Context manager that runs and measures Prometheus; ``options``: see tests/prometheus.py."""

    def __init__(self, folder: Path, target: int, *options: str, interval_s: int) -> None:
        super().__init__(folder, target, *options, interval_s=interval_s)
        self._data = folder / "data"
        self._command.append("--web.enable-admin-api")

    def __enter__(self) -> Measured:
        super().__enter__()
        return self

    def reading(self) -> dict[str, float]:
        """Return ``series`` in the head block, ``samples`` and ``cpu_s`` so far, and the memory in MB."""
        found = dict.fromkeys((_SERIES, _APPENDED), 0.0)
        for line in self._ask("GET", "/metrics").splitlines():
            name, _, value = line.rpartition(" ")
            if name.partition("{")[0] in found:
                found[name.partition("{")[0]] += float(value)
        pid = self._process.pid
        return {
            "series": found[_SERIES],
            "samples": found[_APPENDED],
            "cpu_s": cpu_seconds(pid),
            **memory_mb(pid),
        }

    def up(self) -> int:
        """Return the number of targets whose last scrape succeeded."""
        found: list[Any] = self.get("/api/v1/query?query=sum(up)")["result"]
        return int(found[0]["value"][1]) if found else 0

    def on_disk(self) -> dict[str, int]:
        """Write the head block to disk. Return the sizes of its chunks and index and of the WAL, in bytes."""
        name = json.loads(self._ask("POST", "/api/v1/admin/tsdb/snapshot"))["data"]["name"]
        block = self._data / "snapshots" / name
        return {
            "chunks": sum(file.stat().st_size for file in block.glob("*/chunks/*")),
            "index": sum(file.stat().st_size for file in block.glob("*/index")),
            "wal": sum(file.stat().st_size for file in (self._data / "wal").glob("0*")),
        }

    def _ask(self, method: str, path: str) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path)
            return connection.getresponse().read().decode()
        finally:
            connection.close()
