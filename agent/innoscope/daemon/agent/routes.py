"""Map the agent's paths to handlers."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Protocol

from innoscope.daemon.http import runbooks
from innoscope.daemon.http.answers import as_json, compressed
from innoscope.daemon.http.server import Request, Response, plain
from innoscope.daemon.protocol.client import SensorDown
from innoscope.metrics.families import Texts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from innoscope.daemon.agent.collect import Gatherer
    from innoscope.daemon.agent.page import LivePage
    from innoscope.daemon.agent.stack_history import ProfileStore

#: Seconds of Prometheus' timeout reserved for the transfer.
_TRANSFER_S: Final = 0.15
_TIMEOUT_HEADER: Final = "X-Prometheus-Scrape-Timeout-Seconds"


class ProbesApi(Protocol):
    """The part of ``SensorClient`` that returns the status of probes."""

    def probes(self) -> dict[str, list[dict[str, Any]]]:
        """Return the status of each probe, by server."""


class Routes:
    """Handlers for all paths of the agent."""

    def __init__(
        self,
        gatherer: Gatherer,
        store: ProfileStore,
        page: LivePage,
        sensor: ProbesApi,
        own_name_of: Callable[[str], str | None],
        telemetry_path: str,
    ) -> None:
        self._gatherer, self._store, self._page = gatherer, store, page
        self._sensor, self._own_name_of = sensor, own_name_of
        self._telemetry_path = telemetry_path
        self._texts = Texts()

    def table(self) -> Mapping[str, Callable[[Request], Response]]:
        """Return a mapping of paths to handlers."""
        return {
            **self._page.table(),
            self._telemetry_path: self.metrics,
            "/-/healthy": lambda _: plain("Innoscope is healthy."),
            "/-/ready": self.ready,
            "/api/stacks": self._store.answer,
            "/api/probes": self.probes,
            **runbooks.routes(),
        }

    def metrics(self, request: Request) -> Response:
        """Run a scrape, and serve all its series in the format that the client accepts."""
        header = request.headers.get(_TIMEOUT_HEADER)
        scrape = self._gatherer.gather(budget(header, self._gatherer.budget))
        if scrape is None:
            return plain("the first scrape is not complete", HTTPStatus.SERVICE_UNAVAILABLE)
        return Response(*self._texts.of(scrape.series, request.headers.get("Accept", "")))

    def ready(self, _: Request) -> Response:
        """Serve the readiness check: it succeeds after the first scrape, and never starts a scrape."""
        if self._gatherer.latest is None:
            return plain("Innoscope is not ready.", HTTPStatus.SERVICE_UNAVAILABLE)
        return plain("Innoscope is ready.")

    def probes(self, request: Request) -> Response:
        """Serve the status of all probes, as reported by the sensor: ``{server: [probe, …]}``."""
        try:
            statuses = self._sensor.probes()
        except SensorDown as error:
            return as_json({"error": error.what, "remedy": error.remedy}, HTTPStatus.SERVICE_UNAVAILABLE)
        named = ((self._own_name_of(name), rows) for name, rows in statuses.items())
        return compressed(request, as_json({name: rows for name, rows in named if name is not None}))


def budget(header: str | None, longest: float) -> float:
    """Return the time limit of a scrape: at most ``longest`` seconds, and less than Prometheus' timeout.

    ``header`` is Prometheus' timeout, if sent.
    """
    try:
        timeout = float(header or "inf")
    except ValueError:
        timeout = float("inf")
    return max(0.05, min(longest, timeout - _TRANSFER_S))
