"""The last hour of folded stacks, taken over from the sensor chunk by chunk, and served."""

from __future__ import annotations

import datetime
import threading
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol

from innoscope.exporter.web import HTML, TEXT, Request, Response, plain
from innoscope.stacks.profiles import Profiles, report
from innoscope.stacks.render import FORMATS, encode

if TYPE_CHECKING:
    from collections.abc import Callable

    from innoscope.sensor.client import Cursor, ServerProfiles
    from innoscope.stacks.profiles import Chunk
    from innoscope.target.model import Target

_TYPES: Final = {
    "html": HTML,
    "json": "application/json",
    "speedscope": "application/json",
    "pprof": "application/octet-stream",
}
_NOT_TRUSTED: Final = (
    "stacks are served to this host only, or to those who prove who they are: "
    "set basic_auth_users or RequireAndVerifyClientCert in the web configuration file"
)


class Sensor(Protocol):
    """What tells of profiles: ``innoscope.sensor.client.SensorClient``."""

    def profiles(self, cursor: Cursor) -> tuple[Cursor, dict[str, ServerProfiles]]:
        """What is new since the cursor."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """One server's ring, and the Unix time of its newest look."""

    target: Target
    profiles: Profiles
    newest: float


class Store:
    """The profiles of all servers; ``called`` gives our name for the sensor's.

    ``taken`` is told each chunk once, by our name of the server.

    ``poll`` belongs to one thread, ``answer`` may be called by any.
    """

    def __init__(
        self,
        sensor: Sensor,
        called: Callable[[str, Target], str | None],
        keep_s: float,
        clock: Callable[[], float] = time.time,
        taken: Callable[[str, Target, list[Chunk]], None] | None = None,
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
                    kept = self._kept.get(name) or _Kept(one.target, Profiles(span_s=self._keep_s), 0)
                    newest = max([kept.newest, *(chunk.end for chunk in one.chunks)])
                    self._kept[name] = _Kept(one.target, kept.profiles, newest)
                for chunk in one.chunks:
                    kept.profiles.put(chunk)
                if self._taken is not None:
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
        if not request.trusted:
            return plain(_NOT_TRUSTED, HTTPStatus.FORBIDDEN)
        with self._lock:
            kept = dict(self._kept)
        try:
            form = _choice("format", request.query.get("format") or "text", list(FORMATS))
            if not kept:
                return plain("no stacks yet: the sensor has told of none", HTTPStatus.SERVICE_UNAVAILABLE)
            only = next(iter(kept)) if len(kept) == 1 else ""
            name = _choice("server", request.query.get("server") or only, list(kept))
            end = moment(request.query.get("to") or "now", self._clock())
            start = moment(request.query.get("from") or f"-{self._keep_s:.0f}s", self._clock())
        except ValueError as error:
            return plain(str(error), HTTPStatus.BAD_REQUEST)
        made = report(kept[name].target, kept[name].profiles.between(start, end))
        return Response(encode(made, form), _TYPES.get(form, TEXT))


def _choice(what: str, value: str, there_are: list[str]) -> str:
    if value not in there_are:
        raise ValueError(f"{what}= is one of: {', '.join(there_are)}")
    return value


def moment(text: str, now: float) -> float:
    """Unix time of ``now``, ``-15m`` (s, m, h), ``1700000000``, ``2026-01-31T12:00:00Z``; else ValueError."""
    units = {"s": 1, "m": 60, "h": 3600}
    try:
        if text == "now":
            return now
        if text.startswith("-") and text[-1] in units:
            return now - float(text[1:-1]) * units[text[-1]]
        if text.replace(".", "", 1).isdecimal():
            return float(text)
        parsed = datetime.datetime.fromisoformat(text)
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=datetime.UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r} is no time: -15m, a Unix time, or 2026-01-31T12:00:00Z") from error
