"""Run Debian's mysqld_exporter on a test server."""

from __future__ import annotations

import http.client
import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from prometheus_client.parser import text_string_to_metric_families

from servers import Keeper, cache, free_port
from servers.debian import unpack_packages
from waiting import until

if TYPE_CHECKING:
    from servers import Server

_PACKAGE: Final = "prometheus-mysqld-exporter"

#: Values by name and labels.
Values = dict[str, list[tuple[dict[str, str], float]]]


class Exporter:
    """Context manager: a mysqld_exporter on a free loopback port, which logs in as root."""

    def __init__(self, server: Server, *options: str) -> None:
        self._port = free_port()
        self._command = [str(_binary()), f"--web.listen-address=127.0.0.1:{self._port}", *options]
        self._source = f"root@unix({server.folder.outside}/s.sock)/"
        self._keeper = Keeper()
        self._log = Path(tempfile.mkstemp(prefix="mysqld-exporter-")[1])

    def __enter__(self) -> Exporter:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "DATA_SOURCE_NAME": self._source},
            )  # fmt: skip
        self._keeper.watch(self._process.pid)
        until(self._ready, self._log.read_text)
        return self

    def __exit__(self, *_: object) -> None:
        self._keeper.end(self._process)
        self._keeper.close()
        self._log.unlink()

    def scrape(self) -> Values:
        """Return the values of one scrape."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        finally:
            connection.close()
        found: Values = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
        return found

    def _ready(self) -> bool:
        try:
            return bool(self.scrape())
        except OSError:
            return False


def _binary() -> Path:
    """Return the program's path. The package is unpacked, because installing it would start a service."""
    home = cache.root() / "tools" / "mysqld-exporter"
    with cache.locked(home.name):
        if not home.exists():
            with cache.made_whole(home) as scratch:
                unpack_packages((_PACKAGE,), scratch, scratch)
    return home / "usr/bin" / _PACKAGE
