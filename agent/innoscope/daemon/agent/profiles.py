"""The last hour of folded stacks, taken over from the sensor chunk by chunk, and served."""

from __future__ import annotations

import datetime
import math
import threading
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol

from innoscope.daemon.http.answers import REPORT_HEADERS, as_json, packed
from innoscope.daemon.http.server import HTML, TEXT, Request, Response, plain
from innoscope.sampling.profile_history import ProfileHistory, report
from innoscope.sampling.render import FORMATS, encode
from innoscope.sampling.render.compact import compact

if TYPE_CHECKING:
    from collections.abc import Callable

    from innoscope.daemon.protocol.client import Cursor, ServerProfiles
    from innoscope.sampling.fold import Report
    from innoscope.sampling.profile_history import Chunk
    from innoscope.target.model import Target

_TYPES: Final = {
    "html": HTML,
    "json": "application/json",
    "speedscope": "application/json",
    "pprof": "application/octet-stream",
}
NOT_TRUSTED: Final = (
    "stacks are served to this host only, or to those who prove who they are: "
    "set basic_auth_users or RequireAndVerifyClientCert in the web configuration file"
)


class Sensor(Protocol):
    """What tells of profiles: ``innoscope.daemon.protocol.client.SensorClient``."""

    def profiles(self, cursor: Cursor) -> tuple[Cursor, dict[str, ServerProfiles]]:
        """What is new since the cursor."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """One server's ring, and the Unix time of its newest look."""

    target: Target
    profiles: ProfileHistory
    newest: float


class _Refused(Exception):
    """Why there is no answer."""

    def __init__(self, status: HTTPStatus, words: str) -> None:
        super().__init__(words)
        self.response = plain(words, status)


class Store:
    """The profiles of all servers; ``called`` gives our name for the sensor's.

    ``taken`` is told of what is new, each chunk once. ``poll`` belongs to one thread, the answers to any.
    """

    def __init__(
        self,
        sensor: Sensor,
        called: Callable[[str, Target], str | None],
        keep_s: float,
        clock: Callable[[], float] = time.time,
        taken: Callable[[str, Target, list[Chunk]], None] = lambda _name, _target, _chunks: None,
    ) -> None:
        self._sensor = sensor
        self._called = called
        self._keep_s = keep_s
        self._clock = clock
        self._taken = taken
        self._cursor: Cursor = {}
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept] = {}

    def poll(self) -> None:
        """Take over what is new. Raises SensorDown."""
        while True:
            self._cursor, told = self._sensor.profiles(self._cursor)
            for its_name, one in told.items():
                name = self._called(its_name, one.target)
                if name is None:
                    continue
                with self._lock:
                    kept = self._kept.get(name) or _Kept(one.target, ProfileHistory(span_s=self._keep_s), 0)
                    newest = max([kept.newest, *(chunk.end for chunk in one.chunks)])
                    self._kept[name] = _Kept(one.target, kept.profiles, newest)
                for chunk in one.chunks:
                    kept.profiles.add_chunk(chunk)
                self._taken(name, one.target, one.chunks)
            if not any(one.chunks for one in told.values()):
                self._forget_the_old()
                return

    def _forget_the_old(self) -> None:
        """Drop servers of which there was nothing new for as long as we keep it."""
        since = self._clock() - self._keep_s
        with self._lock:
            self._kept = {name: kept for name, kept in self._kept.items() if kept.newest >= since}

    def answer(self, request: Request) -> Response:
        """``/api/stacks?server=&from=&to=&format=``."""
        try:
            _require_trust(request)
            form = _choice("format", request.query.get("format") or "text", list(FORMATS))
            _, made = self._asked_for(request)
        except _Refused as refused:
            return refused.response
        headers = REPORT_HEADERS if form == "html" else {}
        return Response(encode(made, form), _TYPES.get(form, TEXT), headers=headers)

    def flame(self, request: Request) -> Response:
        """``/api/flame?server=&from=&to=``: the same, each name told once."""
        try:
            _require_trust(request)
            name, made = self._asked_for(request)
        except _Refused as refused:
            return refused.response
        return packed(request, as_json({"server": name, **compact(made)}))

    def _asked_for(self, request: Request) -> tuple[str, Report]:
        """The server, and what it did in that time. Raises _Refused."""
        with self._lock:
            kept = dict(self._kept)
        if not kept:
            words = "no stacks yet: the sensor has told of none"
            raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, words)
        only = next(iter(kept)) if len(kept) == 1 else ""
        name = _choice("server", request.query.get("server") or only, list(kept))
        try:
            end = moment(request.query.get("to") or "now", self._clock())
            start = moment(request.query.get("from") or f"-{self._keep_s:.0f}s", self._clock())
        except ValueError as error:
            raise _Refused(HTTPStatus.BAD_REQUEST, str(error)) from error
        return name, report(kept[name].target, kept[name].profiles.between(start, end))


def _require_trust(request: Request) -> None:
    if not request.trusted:
        raise _Refused(HTTPStatus.FORBIDDEN, NOT_TRUSTED)


def _choice(what: str, value: str, there_are: list[str]) -> str:
    if value not in there_are:
        raise _Refused(HTTPStatus.BAD_REQUEST, f"{what}= is one of: {', '.join(there_are)}")
    return value


def moment(text: str, now: float) -> float:
    """Unix time of ``now``, ``-15m`` (s, m, h), ``1700000000``, ``2026-01-31T12:00:00Z``; else ValueError."""
    try:
        found = _moment(text, now)
        if not math.isfinite(found):
            raise ValueError(text)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text[:40]!r} is no time: -15m, a Unix time, or 2026-01-31T12:00:00Z") from error
    return found


def _moment(text: str, now: float) -> float:
    units = {"s": 1, "m": 60, "h": 3600}
    if text == "now":
        return now
    if text.startswith("-") and text[-1] in units:
        return now - float(text[1:-1]) * units[text[-1]]
    if text.replace(".", "", 1).isdecimal():
        return float(text)
    parsed = datetime.datetime.fromisoformat(text)
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=datetime.UTC)).timestamp()
