"""Serve the live page and its data: the current state, recent metrics, and the stacks of a time range."""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from innoscope import __version__
from innoscope.common import sanitize
from innoscope.daemon.agent import state
from innoscope.daemon.http import landing, page_files
from innoscope.daemon.http.answers import PAGE_HEADERS, as_json, compressed, unless_cached
from innoscope.daemon.http.roles import Role
from innoscope.daemon.http.server import HTML, Request, Response, plain
from innoscope.sampling.classify import default_classifier

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from innoscope.daemon.agent.collect import Gatherer, Scrape
    from innoscope.daemon.agent.history import ServerHistories
    from innoscope.daemon.agent.marks import Marks
    from innoscope.daemon.agent.stack_history import ProfileStore

#: Version of the documents described in docs/live-page.md.
SCHEMA: Final = 1
_LINKS: Final = (
    ("/api/stacks", "stacks from the last hour; ?server=&from=-15m&to=now&format=html"),
    (
        "/api/findings",
        "a server's findings for the last minute, or for a past time; ?server=&from=&to=&format=text",
    ),
    ("/api/sessions", "statements from the last hour; ?server=&from=-15m&to=now"),
    ("/api/incidents", "incident files of captured stalls; ?server=, ?file="),
    ("/api/probes", "the probes of each server"),
    ("/api/status", "state of the sensor, the servers and their collectors"),
    ("/api/history", "threads by wait class, dirty pages, checkpoint age in the last hour; ?server=&since="),
    ("/-/healthy", "liveness check"),
    ("/-/ready", "readiness check: the first scrape is complete"),
)


class LivePage:
    """Handlers for the live page and its data. They use the latest scrape, which the agent refreshes.

    ``step_s`` is the number of seconds between refreshes; the history covers ``keep_s`` seconds.
    """

    def __init__(
        self,
        gatherer: Gatherer,
        store: ProfileStore,
        history: ServerHistories,
        *,
        telemetry_path: str,
        step_s: float,
        keep_s: float,
        marks: Marks,
    ) -> None:
        self._gatherer, self._store, self._history = gatherer, store, history
        self._marks = marks
        self._telemetry_path, self._step_s, self._keep_s = telemetry_path, step_s, keep_s

    def table(self) -> Mapping[str, Callable[[Request], Response]]:
        """Return a mapping of paths to handlers."""
        return {
            "/": self.landing,
            "/api/status": self.status,
            "/api/history": self.history,
            "/api/flame": self._store.flame,
            **page_files.routes(),
        }

    def landing(self, request: Request) -> Response:
        """Serve ``/``: the HTML of the live page."""
        scrape = self._latest_scrape()
        sensor = self._gatherer.state
        servers = [
            (view.name, view.what, view.up, view.collectors) for view in (scrape.servers if scrape else ())
        ]
        links = ((self._telemetry_path, "the metrics"), *_LINKS)
        text = landing.page(__version__, None if sensor.up else sensor.words, servers, links)
        return compressed(request, Response(sanitize.block(text).encode(), HTML, headers=PAGE_HEADERS))

    def status(self, request: Request) -> Response:
        """Serve ``/api/status``: the state of the sensor, all servers and their collectors."""
        scrape = self._latest_scrape()
        sensor = self._gatherer.state
        document = {
            "schema": SCHEMA,
            "version": __version__,
            "page": page_files.digest(),
            "now": round(time.time(), 3),
            "gathered_at": round(time.time() - self._gatherer.age(), 3) if scrape else None,
            "step_seconds": self._step_s,
            "keep_seconds": self._keep_s,
            "telemetry_path": self._telemetry_path,
            "sensor": {"up": sensor.up, "words": sensor.words, "restarts": sensor.restarts},
            "stacks": _served(request, Role.STACKS),
            "findings": _served(request, Role.FINDINGS),
            "own": state.own(scrape),
            "servers": [
                {**server, "marks": self._marks.of(server["name"])} for server in state.servers(scrape)
            ],
        }
        return compressed(request, as_json(document))

    def history(self, request: Request) -> Response:
        """Serve ``/api/history?server=&since=``: the rows after a Unix time, or all rows."""
        server = request.query.get("server", "")
        try:
            since = float(request.query.get("since") or 0)
        except ValueError:
            return plain("since= must be a Unix time", HTTPStatus.BAD_REQUEST)
        scrape = self._latest_scrape()
        names = [view.name for view in scrape.servers] if scrape else []
        if server not in names:
            return plain(f"server= must be one of: {', '.join(names)}", HTTPStatus.BAD_REQUEST)
        rows = self._history.rows_since(server, since)
        classes = default_classifier().catalog.classes
        about = {name: {"label": one.label, "about": one.about} for name, one in classes.items()}
        answer = as_json({"schema": SCHEMA, "server": server, **rows, "classes": about})
        return compressed(request, unless_cached(request, answer))

    def _latest_scrape(self) -> Scrape | None:
        return self._gatherer.latest or self._gatherer.gather()


def _served(request: Request, role: Role) -> dict[str, Any]:
    why = request.client.why_not(role)
    return {"served": why is None, "why": why}
