"""Run Debian's Prometheus with an agent as its target."""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import time
import urllib.parse
from typing import TYPE_CHECKING, Any

from servers import Keeper, cache, free_port
from servers.debian import unpack_packages

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_PATIENCE_S = 60


class Prometheus:
    """Context manager: a Prometheus server on a free loopback port, with its data in ``folder``.

    ``options`` contains further lines of the scrape configuration. ``rules`` lists rule files, which are
    evaluated at the same interval. The block begins after three scrapes. Data that ``folder``/data already
    contains can be queried, too.
    """

    def __init__(
        self, folder: Path, target: int, *options: str, interval_s: int = 1, rules: Iterable[Path] = ()
    ) -> None:
        self.port = free_port()
        config = folder / "prometheus.yml"
        lines = [
            f"global: {{scrape_interval: {interval_s}s, scrape_timeout: {interval_s}s,"
            f" evaluation_interval: {interval_s}s}}",
            f"rule_files: {json.dumps([str(rule) for rule in rules])}",
            "scrape_configs:",
            "- job_name: innoscope",
            *(f"  {option}" for option in options),
            f"  static_configs: [{{targets: ['127.0.0.1:{target}']}}]",
        ]
        config.write_text("\n".join(lines) + "\n")
        self._command = [
            binary(), f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=warn",
        ]  # fmt: skip
        self._log = folder / "prometheus.log"
        self._keeper = Keeper()
        self._patience_s = max(_PATIENCE_S, 5 * interval_s)

    def __enter__(self) -> Prometheus:
        with self._log.open("wb") as log:
            # a separate session, so that Ctrl-C does not end Prometheus
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._keeper.watch(self._process.pid)
        self._until("count_over_time(up[1m]) >= 3")
        return self

    def __exit__(self, *_: object) -> None:
        self._keeper.end(self._process)
        self._keeper.close()

    def value(self, query: str) -> float:
        """Return the value of the query's only series."""
        (series,) = self._until(query)
        return float(series["value"][1])

    def until(self, condition: str) -> None:
        """Wait until a comparison such as ``up == 1`` holds for a series.

        A scrape may be late, and the agent's collectors may need a moment after its start.
        """
        self._until(condition)

    def range(self, query: str, start: float, end: float, step: float) -> list[Any]:
        """Return the series of a range query: ``metric`` and ``values``, pairs of time and text."""
        parameters = {"query": query, "start": start, "end": end, "step": step}
        return list(self.get(f"/api/v1/query_range?{urllib.parse.urlencode(parameters)}")["result"])

    def instant(self, query: str, at: float) -> list[Any]:
        """Return the series of an instant query: ``metric`` and ``value``, a pair of time and text."""
        parameters = {"query": query, "time": at}
        return list(self.get(f"/api/v1/query?{urllib.parse.urlencode(parameters)}")["result"])

    def _until(self, query: str) -> list[Any]:
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                found = self.get(f"/api/v1/query?{urllib.parse.urlencode({'query': query})}")["result"]
            except (OSError, ValueError):  # not listening or not ready yet
                found = None
            if found:
                return list(found)
            assert time.monotonic() < deadline, (
                f"{query}: nothing\n{self._log.read_text()}\n{self.get('/api/v1/targets')}"
            )
            time.sleep(0.2)

    def get(self, path: str) -> Any:
        """Return the data of an API response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_PATIENCE_S)
        try:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())["data"]
        finally:
            connection.close()


def binary(name: str = "prometheus") -> str:
    """Return the path of the installed program; if it is missing, unpack Debian's package into the cache."""
    installed = shutil.which(name)
    if installed:
        return installed
    home = cache.root() / "tools" / "prometheus"
    with cache.locked(home.name):
        if not home.exists():
            with cache.made_whole(home) as scratch:
                unpack_packages(("prometheus",), scratch, scratch)
    return str(home / "usr/bin" / name)
