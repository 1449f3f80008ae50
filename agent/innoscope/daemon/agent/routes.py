"""What the agent serves at which path."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Protocol

from innoscope.daemon.http import runbooks
from innoscope.daemon.http.answers import as_json, packed
from innoscope.daemon.http.server import Request, Response, plain
from innoscope.daemon.protocol.client import SensorDown
from innoscope.metrics.families import Texts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from innoscope.daemon.agent.collect import Gatherer
    from innoscope.daemon.agent.page import Page
    from innoscope.daemon.agent.profiles import Store

#: Seconds that a gathering may take, and what is kept back of Prometheus' own patience for the answer's way.
_BUDGET: Final = 0.8
_ON_THE_WAY: Final = 0.15
_TIMEOUT_HEADER: Final = "X-Prometheus-Scrape-Timeout-Seconds"


class Sensor(Protocol):
    """What tells of probes: ``innoscope.daemon.protocol.client.SensorClient``."""

    def probes(self) -> dict[str, list[dict[str, Any]]]:
        """What the probes of each server say of themselves."""


class Routes:
    """The pages, by path."""

    def __init__(
        self,
        gatherer: Gatherer,
        store: Store,
        page: Page,
        sensor: Sensor,
        name_of: Callable[[str], str | None],
        telemetry_path: str,
    ) -> None:
        self._gatherer, self._store, self._page = gatherer, store, page
        self._sensor, self._name_of = sensor, name_of
        self._telemetry_path = telemetry_path
        self._texts = Texts()

    def table(self) -> Mapping[str, Callable[[Request], Response]]:
        """Path → what answers."""
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
        """All series, gathered now."""
        picture = self._gatherer.gather(budget(request.headers.get(_TIMEOUT_HEADER)))
        if picture is None:
            return plain("the first gathering is under way", HTTPStatus.SERVICE_UNAVAILABLE)
        return Response(*self._texts.of(picture.series, request.headers.get("Accept", "")))

    def ready(self, _: Request) -> Response:
        """Whether there was a gathering; nobody is asked for it."""
        if self._gatherer.picture is None:
            return plain("Innoscope is not ready.", HTTPStatus.SERVICE_UNAVAILABLE)
        return plain("Innoscope is ready.")

    def probes(self, request: Request) -> Response:
        """``{server: [probe, …]}`` as the sensor tells it."""
        try:
            told = self._sensor.probes()
        except SensorDown as error:
            return as_json({"error": error.what, "remedy": error.remedy}, HTTPStatus.SERVICE_UNAVAILABLE)
        named = ((self._name_of(name), rows) for name, rows in told.items())
        return packed(request, as_json({name: rows for name, rows in named if name is not None}))


def budget(header: str | None) -> float:
    """Seconds for a gathering, when Prometheus says how long it will wait."""
    try:
        patience = float(header or "inf")
    except ValueError:
        patience = float("inf")
    return max(0.05, min(_BUDGET, patience - _ON_THE_WAY))
