"""What the live page asks for: itself, the state of everything, the hour of numbers, stacks of a time."""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from innoscope import __version__
from innoscope.daemon.agent import state
from innoscope.daemon.agent.profiles import NOT_TRUSTED
from innoscope.daemon.http import landing, page_files
from innoscope.daemon.http.answers import PAGE_HEADERS, as_json, packed, unless_known
from innoscope.daemon.http.server import HTML, Request, Response, plain
from innoscope.sampling.classify import default_classifier

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from innoscope.daemon.agent.collect import Gatherer, Picture
    from innoscope.daemon.agent.history import History
    from innoscope.daemon.agent.profiles import Store

#: Of the documents that are described in docs/live-page.md.
SCHEMA: Final = 1
#: Seconds for the first gathering, should somebody look before there was one.
_BUDGET: Final = 0.8
_LINKS: Final = (
    ("/api/stacks", "stacks of the last hour; ?server=&from=-15m&to=now&format=html"),
    ("/api/findings", "what is wrong with a server, judged from its last minute; ?server=&format=text"),
    ("/api/incidents", "incident files of stalls that were captured; ?server=, ?file="),
    ("/api/probes", "the probes of each server"),
    ("/api/status", "what works, and why the rest does not"),
    ("/api/history", "threads by wait class, dirty pages, checkpoint age of the last hour; ?server=&since="),
    ("/-/healthy", "whether this process answers"),
    ("/-/ready", "whether it has something to say"),
)


class Page:
    """The page and its data. The last gathering is told: the agent sees to it that there is a fresh one.

    ``step_s`` is the time between two of them, and ``keep_s`` what is kept of the past.
    """

    def __init__(
        self,
        gatherer: Gatherer,
        store: Store,
        history: History,
        *,
        telemetry_path: str,
        step_s: float,
        keep_s: float,
    ) -> None:
        self._gatherer, self._store, self._history = gatherer, store, history
        self._telemetry_path, self._step_s, self._keep_s = telemetry_path, step_s, keep_s

    def table(self) -> Mapping[str, Callable[[Request], Response]]:
        """Path → what answers."""
        return {
            "/": self.landing,
            "/api/status": self.status,
            "/api/history": self.history,
            "/api/flame": self._store.flame,
            **page_files.routes(),
        }

    def landing(self, request: Request) -> Response:
        """The page for people."""
        picture = self._picture()
        sensor = self._gatherer.state
        servers = [
            (view.name, view.what, view.up, view.collectors) for view in (picture.servers if picture else ())
        ]
        links = ((self._telemetry_path, "the metrics"), *_LINKS)
        text = landing.page(__version__, None if sensor.up else sensor.words, servers, links)
        return packed(request, Response(text.encode("utf-8", "replace"), HTML, headers=PAGE_HEADERS))

    def status(self, request: Request) -> Response:
        """``/api/status``: all servers as they are, what works, and why the rest does not."""
        picture = self._picture()
        sensor = self._gatherer.state
        told = {
            "schema": SCHEMA,
            "version": __version__,
            "page": page_files.digest(),
            "now": round(time.time(), 3),
            "gathered_at": round(time.time() - self._gatherer.age(), 3) if picture else None,
            "step_seconds": self._step_s,
            "keep_seconds": self._keep_s,
            "telemetry_path": self._telemetry_path,
            "sensor": {"up": sensor.up, "words": sensor.words, "restarts": sensor.restarts},
            "stacks": {"served": request.trusted, "why": None if request.trusted else NOT_TRUSTED},
            "own": state.own(picture),
            "servers": state.servers(picture),
        }
        return packed(request, as_json(told))

    def history(self, request: Request) -> Response:
        """``/api/history?server=&since=``: the rows since a Unix time, all without one."""
        server = request.query.get("server", "")
        try:
            since = float(request.query.get("since") or 0)
        except ValueError:
            return plain("since= is a Unix time", HTTPStatus.BAD_REQUEST)
        picture = self._picture()
        names = [view.name for view in picture.servers] if picture else []
        if server not in names:
            return plain(f"server= is one of: {', '.join(names)}", HTTPStatus.BAD_REQUEST)
        told = self._history.told(server, since)
        classes = default_classifier().catalog.classes
        about = {name: {"label": one.label, "about": one.about} for name, one in classes.items()}
        answer = as_json({"schema": SCHEMA, "server": server, **told, "classes": about})
        return packed(request, unless_known(request, answer))

    def _picture(self) -> Picture | None:
        return self._gatherer.picture or self._gatherer.gather(_BUDGET)
