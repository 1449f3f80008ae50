"""Serve a server's findings, computed on request for the last minute or a past time range."""

from __future__ import annotations

import threading
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from innoscope.daemon.agent.past_findings import past
from innoscope.daemon.agent.stack_history import moment
from innoscope.daemon.http.answers import as_json, compressed
from innoscope.daemon.http.roles import Role
from innoscope.daemon.http.server import Request, Response, plain, plain_lines
from innoscope.diagnose.text import record, text
from innoscope.diagnose.verdict import judge

if TYPE_CHECKING:
    from innoscope.daemon.agent.collect import Gatherer
    from innoscope.daemon.agent.recorder import Recorders
    from innoscope.daemon.agent.stack_history import ProfileStore
    from innoscope.diagnose.evidence import Evidence
    from innoscope.diagnose.verdict import Verdict

SCHEMA: Final = 1
#: Length of the time range to diagnose if the request specifies none, in seconds.
_WINDOW_S: Final = 60.0
#: How long a diagnosis of the last minute is cached, in seconds.
_CACHE_S: Final = 5.0
#: A span is reported as partly observed if less than this share of it was observed.
_MOSTLY: Final = 0.9
_NO_SAMPLES: Final = "no samples from the selected time are in memory: these findings are for the last minute"
_NO_DATA: Final = "no data yet, or the server is on another host, where its threads cannot be sampled"


class Findings:
    """Diagnoses servers on request. Diagnoses of the last minute are cached for ``_CACHE_S`` seconds."""

    def __init__(self, gatherer: Gatherer, recorders: Recorders, store: ProfileStore) -> None:
        self._gatherer, self._recorders, self._store = gatherer, recorders, store
        self._lock = threading.Lock()
        self._cache: dict[str, tuple[float, Evidence, Verdict]] = {}

    def answer(self, request: Request) -> Response:
        """Serve ``/api/findings?server=&from=&to=&format=``: what ``innoscope diagnose`` prints.

        ``format`` is json (the default) or text. Without ``from`` and ``to``, the last minute is diagnosed.
        """
        if why := request.client.why_not(Role.FINDINGS):
            return plain(why, HTTPStatus.FORBIDDEN)
        scrape = self._gatherer.latest
        names = [view.name for view in scrape.servers] if scrape else []
        name = request.query.get("server") or (names[0] if len(names) == 1 else "")
        output_format = request.query.get("format") or "json"
        if name not in names:
            return plain(f"server= must be one of: {', '.join(names)}", HTTPStatus.BAD_REQUEST)
        if output_format not in ("json", "text"):
            return plain("format= must be one of: json, text", HTTPStatus.BAD_REQUEST)
        try:
            span = _span(request)
        except ValueError as error:
            return plain(str(error), HTTPStatus.BAD_REQUEST)
        diagnosis, about = self._diagnose_span(name, *span) if span else (self._diagnose(name), {})
        if diagnosis is None:
            if output_format == "text":
                return plain(_NO_DATA)
            return as_json({"schema": SCHEMA, "name": name, "why": _NO_DATA})
        evidence, verdict = diagnosis
        if output_format == "text":
            note = [f"note: {about['note']}"] if about.get("note") else []
            return compressed(request, plain_lines([*note, *text(evidence, verdict)]))
        document: dict[str, Any] = {"schema": SCHEMA, "name": name, **record(evidence, verdict), **about}
        return compressed(request, as_json(document))

    def _diagnose_span(
        self, name: str, begin: float, end: float
    ) -> tuple[tuple[Evidence, Verdict] | None, dict[str, Any]]:
        """Return the diagnosis for a past time range or, if it contains no samples, for the last minute.

        The second value states which of these times was diagnosed, with a note.
        """
        steps = [step for step in self._store.sessions.between(name, begin, end) if step.weight > 0]
        recorder = self._recorders.of(name)
        if recorder is None or not steps:
            return self._diagnose(name), {"of": "last_minute", "note": _NO_SAMPLES}
        asked, observed = end - begin, sum(step.weight for step in steps)
        note = (
            f"only {observed:.0f} s of the selected {asked:.0f} s were observed"
            if observed < _MOSTLY * asked
            else None
        )
        functions = self._store.functions(name, begin, end)
        return past(recorder.target, steps, functions), {"of": "span", "note": note}

    def _diagnose(self, name: str) -> tuple[Evidence, Verdict] | None:
        with self._lock:
            cached = self._cache.get(name)
            now = time.time()
            if cached is not None and 0 <= now - cached[0] < _CACHE_S:
                return cached[1:]
            recorder = self._recorders.of(name)
            if recorder is None:
                return None
            evidence = recorder.between(now - _WINDOW_S, now, recorder.query_blockers())
            verdict = judge(evidence)
            current = self._recorders.all()
            self._cache = {server: entry for server, entry in self._cache.items() if server in current}
            self._cache[name] = (time.time(), evidence, verdict)
            return evidence, verdict


def _span(request: Request) -> tuple[float, float] | None:
    """Return the requested time range; None if none is requested.

    Raise ValueError if it is malformed or empty.
    """
    if "from" not in request.query and "to" not in request.query:
        return None
    now = time.time()
    begin, end = (moment(request.query.get(key) or "now", now) for key in ("from", "to"))
    if begin >= end:
        raise ValueError("from= must be before to=")
    return begin, end
