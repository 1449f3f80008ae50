"""Fetch folded stacks from the sensor in chunks, store them for an hour by default, and serve them."""

from __future__ import annotations

import datetime
import math
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol

from innoscope.daemon.agent.session_hour import SessionHour, digest_number
from innoscope.daemon.http.answers import REPORT_HEADERS, as_json, compressed
from innoscope.daemon.http.roles import Role
from innoscope.daemon.http.server import HTML, TEXT, Request, Response, plain
from innoscope.sampling.profile_history import ProfileHistory, rare_stack, report
from innoscope.sampling.render import FORMATS, encode
from innoscope.sampling.render.live_page import compact
from innoscope.sampling.sessions.model import stack_id

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from innoscope.daemon.agent.session_hour import SessionStep
    from innoscope.daemon.protocol.client import Cursor, Page, ServerProfiles
    from innoscope.sampling.fold import StackReport
    from innoscope.sampling.profile_history import Chunk, ClassifiedStack
    from innoscope.target.model import Target

#: Maximum number of requests per poll. They suffice for all that the sensor stores of 100 servers.
_MAX_REQUESTS: Final = 100
_TYPES: Final = {
    "html": HTML,
    "json": "application/json",
    "speedscope": "application/json",
    "pprof": "application/octet-stream",
}


class ProfilesApi(Protocol):
    """The part of ``SensorClient`` that returns profiles."""

    def profiles(self, cursor: Cursor) -> Page[ServerProfiles]:
        """Return the chunks after ``cursor`` by server."""


@dataclass(frozen=True, slots=True)
class _ServerProfiles:
    """Stored profiles of one server, and the Unix time of its newest snapshot."""

    target: Target
    profiles: ProfileHistory
    newest: float


class _Refused(Exception):
    """The request is refused. ``response`` contains the status and the reason."""

    def __init__(self, status: HTTPStatus, words: str) -> None:
        super().__init__(words)
        self.response = plain(words, status)


class ProfileStore:
    """Stores the profiles of all servers for ``keep_s`` seconds.

    ``own_name`` maps the sensor's name for a server to the agent's name, or to None to exclude the server.
    ``on_new`` receives each new chunk exactly once. ``sessions`` contains the threads' statements. Only one
    thread may call ``poll``; the other methods are thread-safe.
    """

    def __init__(
        self,
        sensor: ProfilesApi,
        own_name: Callable[[str, Target], str | None],
        keep_s: float,
        clock: Callable[[], float] = time.time,
        on_new: Callable[[str, Target, list[Chunk]], None] = lambda _name, _target, _chunks: None,
        sessions: SessionHour | None = None,
    ) -> None:
        self._sensor = sensor
        self._own_name = own_name
        self._keep_s = keep_s
        self._clock = clock
        self._on_new = on_new
        self.sessions = sessions or SessionHour(keep_s, clock=clock)
        self._cursor: Cursor = {}
        self._lock = threading.Lock()
        self._stored: dict[str, _ServerProfiles] = {}

    def poll(self) -> None:
        """Fetch and store all new chunks. Raise SensorDown if the sensor does not reply."""
        for _ in range(_MAX_REQUESTS):
            page = self._sensor.profiles(self._cursor)
            self._cursor = page.cursor
            for sensor_name, one in page.servers.items():
                name = self._own_name(sensor_name, one.target)
                if name is None:
                    continue
                with self._lock:
                    stored = self._stored.get(name) or _ServerProfiles(
                        one.target, ProfileHistory(span_s=self._keep_s), 0
                    )
                    newest = max([stored.newest, *(chunk.end for chunk in one.chunks)])
                    self._stored[name] = _ServerProfiles(one.target, stored.profiles, newest)
                    servers = len(self._stored)
                stored.profiles.share(servers)
                for chunk in one.chunks:
                    stored.profiles.add_chunk(chunk)
                self._on_new(name, one.target, one.chunks)
            if not page.more:
                break
        self._drop_expired()

    def _drop_expired(self) -> None:
        """Remove servers whose newest snapshot is older than ``keep_s`` seconds."""
        since = self._clock() - self._keep_s
        with self._lock:
            self._stored = {name: stored for name, stored in self._stored.items() if stored.newest >= since}

    def answer(self, request: Request) -> Response:
        """Serve ``/api/stacks?server=&from=&to=&digest=&format=``: stacks of a time range."""
        try:
            _require_trust(request)
            output_format = _choice("format", request.query.get("format") or "text", list(FORMATS))
            _, profile = self._requested(request)
        except _Refused as refused:
            return refused.response
        headers = REPORT_HEADERS if output_format == "html" else {}
        return Response(encode(profile, output_format), _TYPES.get(output_format, TEXT), headers=headers)

    def flame(self, request: Request) -> Response:
        """Serve ``/api/flame?server=&from=&to=&digest=``: the stacks, with each name sent only once."""
        try:
            _require_trust(request)
            name, profile = self._requested(request)
        except _Refused as refused:
            return refused.response
        return compressed(request, as_json({"server": name, **compact(profile)}))

    def _requested(self, request: Request) -> tuple[str, StackReport]:
        """Return the name and the profile of the requested server and time range, or raise _Refused."""
        with self._lock:
            stored = dict(self._stored)
        if not stored:
            message = "no stacks yet: the sensor has not sent any"
            raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, message)
        only = next(iter(stored)) if len(stored) == 1 else ""
        name = _choice("server", request.query.get("server") or only, list(stored))
        try:
            start, end = period(request, self._keep_s, self._clock())
        except ValueError as error:
            raise _Refused(HTTPStatus.BAD_REQUEST, str(error)) from error
        chunk = stored[name].profiles.between(start, end)
        digest = request.query.get("digest")
        if digest is not None:
            chunk = _of_statement(chunk, self.sessions.between(name, start, end), digest)
        return name, report(stored[name].target, chunk)

    def functions(self, server: str, begin: float, end: float) -> dict[int, tuple[str, ...]]:
        """Return the functions of all stacks in a time range, by ``stack_id``; empty if there are none."""
        with self._lock:
            stored = self._stored.get(server)
        stacks = stored.profiles.between(begin, end).counts if stored else {}
        return {stack_id(stack.labels): stack.labels for stack in stacks}


def _of_statement(chunk: Chunk, steps: Sequence[SessionStep], text: str) -> Chunk:
    """Return the part of the chunk that belongs to a statement. Raise _Refused if the digest is malformed."""
    try:
        digest = digest_number(text)
    except ValueError as error:
        raise _Refused(HTTPStatus.BAD_REQUEST, f"digest={error}") from error
    stacks = {stack_id(stack.labels): stack for stack in chunk.counts}
    weight = sum(step.weight for step in steps) or 1.0
    counts: defaultdict[ClassifiedStack, float] = defaultdict(float)
    for step in steps:
        for row, seconds in step.rows():
            if row.digest != digest:
                continue
            stack = stacks.get(row.stack)
            if stack is None or stack.wait != row.wait:
                stack = rare_stack(row.wait)
            counts[stack] += seconds / weight * chunk.snapshots
    return replace(chunk, counts={stack: round(count) for stack, count in counts.items()}, dropped=0)


def _require_trust(request: Request) -> None:
    if why := request.client.why_not(Role.STACKS):
        raise _Refused(HTTPStatus.FORBIDDEN, why)


def _choice(field: str, value: str, choices: list[str]) -> str:
    if value not in choices:
        raise _Refused(HTTPStatus.BAD_REQUEST, f"{field}= must be one of: {', '.join(choices)}")
    return value


def period(request: Request, keep_s: float, now: float) -> tuple[float, float]:
    """Return the requested time range, by default the last ``keep_s`` seconds.

    Raise ValueError if a time is malformed.
    """
    start = moment(request.query.get("from") or f"-{keep_s:.0f}s", now)
    return start, moment(request.query.get("to") or "now", now)


def moment(text: str, now: float) -> float:
    """Convert ``now``, ``-15m`` (s, m, h), ``1700000000`` or ``2026-01-31T12:00:00Z`` to a Unix time.

    Raise ValueError if the text is anything else.
    """
    try:
        unix_time = _parse_moment(text, now)
        if not math.isfinite(unix_time):
            raise ValueError(text)
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"{text[:40]!r} is not a time: use -15m, a Unix time, or 2026-01-31T12:00:00Z"
        ) from error
    return unix_time


def _parse_moment(text: str, now: float) -> float:
    units = {"s": 1, "m": 60, "h": 3600}
    if text == "now":
        return now
    if text.startswith("-") and text[-1] in units:
        return now - float(text[1:-1]) * units[text[-1]]
    if text.replace(".", "", 1).isdecimal():
        return float(text)
    parsed = datetime.datetime.fromisoformat(text)
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=datetime.UTC)).timestamp()
