"""What the agent serves at which path."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Protocol

from innoscope import __version__
from innoscope.exporter import landing, runbooks
from innoscope.exporter.families import expose
from innoscope.exporter.web import HTML, Request, Response, plain
from innoscope.sensor.client import SensorDown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from innoscope.agent.gather import Gatherer
    from innoscope.agent.profiles import Store

#: Seconds that a gathering may take, and what is kept back of Prometheus' own patience for the answer's way.
_BUDGET: Final = 0.8
_ON_THE_WAY: Final = 0.15
_TIMEOUT_HEADER: Final = "X-Prometheus-Scrape-Timeout-Seconds"


class Sensor(Protocol):
    """What tells of probes: ``innoscope.sensor.client.SensorClient``."""

    def probes(self) -> dict[str, list[dict[str, Any]]]:
        """What the probes of each server say of themselves."""


class Routes:
    """The pages, by path."""

    def __init__(
        self,
        gatherer: Gatherer,
        store: Store,
        sensor: Sensor,
        name_of: Callable[[str], str | None],
        telemetry_path: str,
    ) -> None:
        self._gatherer, self._store, self._sensor, self._name_of = gatherer, store, sensor, name_of
        self._telemetry_path = telemetry_path

    def table(self) -> Mapping[str, Callable[[Request], Response]]:
        """Path → what answers."""
        return {
            "/": self.landing,
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
        body, content_type = expose(picture.series, request.headers.get("Accept", ""))
        return Response(body, content_type)

    def ready(self, _: Request) -> Response:
        """Whether there was a gathering; nobody is asked for it."""
        if self._gatherer.picture is None:
            return plain("Innoscope is not ready.", HTTPStatus.SERVICE_UNAVAILABLE)
        return plain("Innoscope is ready.")

    def landing(self, _: Request) -> Response:
        """The page for people."""
        picture = self._gatherer.gather(_BUDGET)
        state = self._gatherer.state
        links = [
            (self._telemetry_path, "the metrics"),
            ("/api/stacks", "stacks of the last hour; ?server=&from=-15m&to=now&format=html"),
            ("/api/probes", "the probes of each server"),
            ("/-/healthy", "whether this process answers"),
            ("/-/ready", "whether it has something to say"),
        ]
        servers = [
            (view.name, view.what, view.up, view.collectors) for view in (picture.servers if picture else ())
        ]
        text = landing.page(__version__, None if state.up else state.words, servers, links)
        return Response(text.encode(), HTML)

    def probes(self, _: Request) -> Response:
        """``{server: [probe, …]}`` as the sensor tells it."""
        try:
            told = self._sensor.probes()
        except SensorDown as error:
            return _json({"error": error.what, "remedy": error.remedy}, HTTPStatus.SERVICE_UNAVAILABLE)
        named = ((self._name_of(name), rows) for name, rows in told.items())
        return _json({name: rows for name, rows in named if name is not None}, HTTPStatus.OK)


def _json(value: Any, status: HTTPStatus) -> Response:
    return Response(json.dumps(value, ensure_ascii=False).encode() + b"\n", "application/json", status)


def budget(header: str | None) -> float:
    """Seconds for a gathering, when Prometheus says how long it will wait."""
    try:
        patience = float(header or "inf")
    except ValueError:
        patience = float("inf")
    return max(0.05, min(_BUDGET, patience - _ON_THE_WAY))
