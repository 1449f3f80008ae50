"""A server with probes attached, whose counts are compared with other counters."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from innoscope.common.samples import Histogram, by_series
from innoscope.metrics.collectors.probes import ProbesCollector
from innoscope.probes import guard
from innoscope.target.discover import find_one

if TYPE_CHECKING:
    from collections.abc import Callable

    from innoscope.probes.attachment import Point
    from servers import Server


class Watched:
    """A server with probes attached."""

    def __init__(self, server: Server, *families: str) -> None:
        self.server = server
        # the budget is unlimited, because these tests compare counts
        self.collector = ProbesCollector(find_one(server.pid), families=frozenset(families), budget=1.0)
        # without the guard, which detaches the probes if this process gets no CPU time for some seconds
        guard.unwatch(self.collector.start())

    def probed(self, metric: str) -> float:
        """Return the metric's value, summed over all labels; for a histogram, its number of observations."""
        series = by_series(self.collector.collect())
        values = [value for (name, _), value in series.items() if name == metric]
        return sum(value.count if isinstance(value, Histogram) else value for value in values)

    def status(self, variable: str) -> int:
        """Return the value of a status variable."""
        return int(self.server.sql(f"SHOW GLOBAL STATUS LIKE '{variable}'")[0][1])

    def together(self, metric: str, variable: str) -> tuple[float, int]:
        """Return the values of the metric and of the status variable at a time when neither changes."""
        while True:
            before, probed = self.status(variable), self.probed(metric)
            if self.status(variable) == before:
                return probed, before

    def points(self) -> list[Point]:
        """Return the attached probes."""
        return self.collector.start_once().attachment.points

    def uprobe(self, point: Point) -> str:
        """Return bpftrace's name for a probe's location, with a filter for the server's pid."""
        [place] = point.placed.places
        pid = self.server.pid
        return f"uprobe:/proc/{pid}/root{self._path()}:{place.symbol} /pid == {pid}/"

    def _path(self) -> str:
        target = find_one(self.server.pid)
        return target.executable.removeprefix(target.root if target.root != "/" else "")

    def settled(self, read: Callable[[], float]) -> float:
        """Wait until the value stops changing, and return it. Background threads outlast the workload."""
        last, since = read(), time.monotonic()
        deadline = since + 60
        while time.monotonic() - since < 1.5:
            assert time.monotonic() < deadline, "the server does not become idle"
            time.sleep(0.1)
            now = read()
            if now != last:
                last, since = now, time.monotonic()
        return last
