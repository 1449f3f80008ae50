"""What is wrong with a server now: its last minute judged when somebody asks."""

from __future__ import annotations

import threading
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from innoscope.daemon.agent.profiles import NOT_TRUSTED
from innoscope.daemon.http.answers import as_json, packed
from innoscope.daemon.http.server import Request, Response, plain
from innoscope.diagnose.text import record, text
from innoscope.diagnose.verdict import judge

if TYPE_CHECKING:
    from collections.abc import Callable

    from innoscope.daemon.agent.collect import Gatherer
    from innoscope.daemon.agent.recorder import Recorders
    from innoscope.diagnose.evidence import Evidence
    from innoscope.diagnose.verdict import Verdict

SCHEMA: Final = 1
#: Seconds that are judged, and for which a verdict is told again.
_SPAN_S: Final = 60.0
_FRESH_S: Final = 5.0
_NOT_KNOWN: Final = (
    "nothing was gathered of it yet, or it is on another host, where nobody looks at its threads"
)


class Findings:
    """Of all servers; a server is judged once in some seconds, whoever asks."""

    def __init__(
        self, gatherer: Gatherer, recorders: Recorders, clock: Callable[[], float] = time.time
    ) -> None:
        self._gatherer, self._recorders, self._clock = gatherer, recorders, clock
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, Evidence, Verdict]] = {}

    def answer(self, request: Request) -> Response:
        """``/api/findings?server=``: as ``innoscope diagnose`` says it, in JSON or with ``format=text``."""
        if not request.trusted:
            return plain(NOT_TRUSTED, HTTPStatus.FORBIDDEN)
        picture = self._gatherer.picture
        names = [view.name for view in picture.servers] if picture else []
        name = request.query.get("server") or (names[0] if len(names) == 1 else "")
        form = request.query.get("format") or "json"
        if name not in names:
            return plain(f"server= is one of: {', '.join(names)}", HTTPStatus.BAD_REQUEST)
        if form not in ("json", "text"):
            return plain("format= is one of: json, text", HTTPStatus.BAD_REQUEST)
        judged = self._judged(name)
        if judged is None:
            if form == "text":
                return plain(_NOT_KNOWN)
            return as_json({"schema": SCHEMA, "name": name, "why": _NOT_KNOWN})
        evidence, verdict = judged
        if form == "text":
            return packed(request, plain("\n".join(text(evidence, verdict))))
        told: dict[str, Any] = {"schema": SCHEMA, "name": name, **record(evidence, verdict)}
        return packed(request, as_json(told))

    def _judged(self, name: str) -> tuple[Evidence, Verdict] | None:
        with self._lock:
            known = self._known.get(name)
            now = self._clock()
            if known is not None and 0 <= now - known[0] < _FRESH_S:
                return known[1:]
            recorder = self._recorders.of(name)
            if recorder is None:
                return None
            evidence = recorder.between(now - _SPAN_S, now, recorder.who())
            verdict = judge(evidence)
            there_are = self._recorders.all()
            self._known = {one: found for one, found in self._known.items() if one in there_are}
            self._known[name] = (self._clock(), evidence, verdict)
            return evidence, verdict
