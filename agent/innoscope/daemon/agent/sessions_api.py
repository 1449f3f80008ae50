"""Serve the statements of a time range: average active sessions by digest and wait class."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from innoscope.daemon.agent.session_hour import OTHERS, UNKNOWN, digest_number, digest_text
from innoscope.daemon.agent.stack_history import period
from innoscope.daemon.http.answers import as_json, compressed
from innoscope.daemon.http.roles import Role
from innoscope.daemon.http.server import Request, Response, plain
from innoscope.sampling.profile_history import SPAN_S
from innoscope.sampling.snapshot_history import CLIENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from innoscope.daemon.agent.collect import Gatherer
    from innoscope.daemon.agent.session_hour import SessionHour, SessionStep

SCHEMA: Final = 1
#: Maximum number of statements in a response.
_MOST: Final = 50


class SessionsApi:
    """Serves the statements that client threads were executing, from the samples in memory."""

    def __init__(self, hour: SessionHour, gatherer: Gatherer) -> None:
        self._hour, self._gatherer = hour, gatherer

    def answer(self, request: Request) -> Response:
        """Serve ``/api/sessions?server=&from=&to=&digest=``.

        With ``digest=``, the response also contains that statement's text and all its stored sessions.
        """
        if why := request.client.why_not(Role.STACKS):
            return plain(why, HTTPStatus.FORBIDDEN)
        scrape = self._gatherer.latest
        names = [view.name for view in scrape.servers] if scrape else []
        server = request.query.get("server") or (names[0] if len(names) == 1 else "")
        if server not in names:
            return plain(f"server= must be one of: {', '.join(names)}", HTTPStatus.BAD_REQUEST)
        try:
            begin, end = period(request, SPAN_S, time.time())
            digest = digest_number(request.query["digest"]) if "digest" in request.query else None
        except ValueError as error:
            return plain(str(error), HTTPStatus.BAD_REQUEST)
        document: dict[str, Any] = {
            "schema": SCHEMA,
            "server": server,
            "since": self._hour.oldest(server),
            **_statements(self._hour.between(server, begin, end), self._hour.texts(server)),
        }
        if digest is not None:
            document["rows"] = _rows(self._hour.between(server, 0, math.inf), digest)
            document["text"] = self._hour.texts(server).get(digest)
        return compressed(request, as_json(document))


def _statements(steps: Sequence[SessionStep], texts: dict[int, str]) -> dict[str, Any]:
    """Return the observed time, the average active sessions, and their breakdown by digest, largest first."""
    observed = sum(step.weight for step in steps)
    by_digest: defaultdict[int, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for step in steps:
        for row, seconds in step.rows():
            if row.kind == CLIENT:
                by_digest[row.digest][row.wait] += seconds / observed
    ranked = sorted(by_digest.items(), key=lambda one: -sum(one[1].values()))
    listed = [one for one in ranked if one[0] != OTHERS][:_MOST]
    others: defaultdict[str, float] = defaultdict(float)
    for digest, waits in ranked:
        if digest not in dict(listed):
            for wait, sessions in waits.items():
                others[wait] += sessions
    return {
        "observed_seconds": round(observed, 3),
        "sessions": _rounded(sum(sum(waits.values()) for _, waits in ranked)),
        "digests": [
            {
                "digest": None if digest == UNKNOWN else digest_text(digest),
                "text": texts.get(digest),
                "sessions": _rounded(sum(waits.values())),
                "waits": {wait: _rounded(sessions) for wait, sessions in waits.items()},
            }
            for digest, waits in listed
        ],
        "others": {wait: _rounded(sessions) for wait, sessions in others.items()},
    }


def _rows(steps: Sequence[SessionStep], digest: int) -> dict[str, Any]:
    """Return the sessions of a statement over time, in the format of the threads in ``/api/history``."""
    waits = sorted({row.wait for step in steps for row, _ in step.rows() if row.digest == digest})
    columns: dict[str, list[float]] = {wait: [0.0] * len(steps) for wait in waits}
    for place, step in enumerate(steps):
        for row, seconds in step.rows():
            if row.digest == digest and row.kind == CLIENT:
                columns[row.wait][place] += seconds / step.weight if step.weight else 0.0
    return {
        "at": [step.at for step in steps],
        "threads": {wait: [_rounded(value) for value in column] for wait, column in columns.items()},
    }


def _rounded(value: float) -> float:
    return round(value, 4)
