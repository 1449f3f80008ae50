"""An OTLP exporter with a simulated clock, and the metrics and log records that it sends in tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from innoscope.common.samples import Histogram
from innoscope.daemon.push.otlp import MetricValues, OtlpExporter, OtlpSender
from innoscope.daemon.push.otlp_encoding import LogRecord
from innoscope.daemon.push.settings import Otlp
from innoscope.metrics import registry
from innoscope.metrics.merge import ExportedSeries

if TYPE_CHECKING:
    from collections.abc import Mapping

    from innoscope.common.samples import Value
    from innoscope.daemon.push.client import HttpAnswer
    from innoscope.daemon.push.formats import PushRequest
    from otlp_receiver import OtlpReceiver

WALL = 1_700_000_000.0
T = 1_700_000_000 * 10**9
RESOURCES: Mapping[str, Any] = {
    "": {"service.name": "innoscope", "service.instance.id": "db1"},
    "shop": {"service.name": "innoscope", "db.system.name": "mysql", "server.port": 3306, "db.gone": None},
}


def series(name: str, server: str, labels: tuple[str, ...], value: Value) -> ExportedSeries:
    return ExportedSeries(registry.default()[name], server, labels, value)


class World:
    """An exporter with a simulated clock and a receiver that records what it gets."""

    def __init__(self, receiver: OtlpReceiver, **settings: Any) -> None:
        self.now = 0.0
        self.value = 0.0
        self.attempts: list[float] = []
        self.sent: list[str] = []
        otlp = Otlp(url=receiver.url, **settings)
        self._real = OtlpSender(otlp)
        self.exporter = OtlpExporter(
            otlp, self.collect, lambda: RESOURCES, sender=self, clock=lambda: self.now, wall=lambda: WALL,
            jitter=lambda _, most: most,
        )  # fmt: skip

    def collect(self) -> MetricValues:
        self.value += 1
        at_ns = T + int(self.now * 1e9)
        return MetricValues(at_ns, (series("push_failures", "", ("busy",), self.value),))

    def post(self, request: PushRequest, timeout_s: float | None = None) -> HttpAnswer:
        self.attempts.append(self.now)
        answer = self._real.post(request, timeout_s)
        self.sent.append(request.target)
        return answer

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + self.exporter.step())

    def count(self, name: str, *labels: str) -> float:
        [value] = [
            one.value for one in self.exporter.samples() if one.metric == name and one.labels == labels
        ]
        assert not isinstance(value, Histogram)
        return value


def finding(server: str = "shop", title: str = "10 threads wait") -> LogRecord:
    return LogRecord(server, "innoscope.finding", 1_700_000_000.25, title, True, {"innoscope.score": 80.0})
