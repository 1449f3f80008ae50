"""Remember when servers started or exited and when toggles were changed, for the live page's time axis."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from innoscope.daemon.agent import state

if TYPE_CHECKING:
    from collections.abc import Callable

    from innoscope.daemon.agent.collect import Scrape

#: Maximum number of marks per server; the oldest are dropped first.
MOST: Final = 50
_Kind = Literal["started", "exited", "toggle_set", "toggle_undone"]
#: Start times that differ by less than this many seconds belong to the same process, because adjustments of
#: the clock change the computed start time.
_SAME_S: Final = 2.0
#: A toggle in force: its name, its value, and the time at which it was set.
_Toggle = tuple[str, str, float | None]


@dataclass(frozen=True, slots=True)
class _Mark:
    at: float
    kind: _Kind
    words: str


@dataclass(slots=True)
class _Server:
    """A server's marks, and its state in the last scrape."""

    marks: deque[_Mark] = field(default_factory=lambda: deque(maxlen=MOST))
    started: float | None = None
    up: bool | None = None
    toggles: dict[_Toggle, str] = field(default_factory=dict)


class Marks:
    """Compares successive scrapes. Thread-safe. Marks are kept for ``keep_s`` seconds."""

    def __init__(self, keep_s: float, clock: Callable[[], float] = time.time) -> None:
        self._keep_s, self._clock = keep_s, clock
        self._lock = threading.Lock()
        self._servers: dict[str, _Server] = {}

    def add_scrape(self, at: float, scrape: Scrape) -> None:
        """Compare a scrape, made at Unix time ``at``, with the one before."""
        documents = state.servers(scrape)
        failed = {view.name for view in scrape.servers if dict(view.collectors).get("toggles") is not None}
        with self._lock:
            names = {one["name"] for one in documents}
            since = self._clock() - self._keep_s
            self._servers = {
                name: one
                for name, one in self._servers.items()
                if name in names or any(mark.at >= since for mark in one.marks)
            }
            for one in documents:
                server = self._servers.setdefault(one["name"], _Server())
                _compare_process(server, at, one)
                if one["name"] not in failed and one["up"]:
                    _compare_toggles(server, at, one["toggles"])

    def of(self, server: str) -> list[dict[str, Any]]:
        """Return the marks of a server, oldest first: time, kind and description."""
        since = self._clock() - self._keep_s
        with self._lock:
            known = self._servers.get(server)
            marks = list(known.marks) if known else []
        recent = sorted((one for one in marks if one.at >= since), key=lambda one: one.at)
        return [{"at": round(one.at, 3), "kind": one.kind, "words": one.words} for one in recent]


def _compare_process(server: _Server, at: float, document: dict[str, Any]) -> None:
    started = document["now"].get("mysqld_start_time_seconds")
    if server.up and document["up"] is False:
        server.marks.append(_Mark(at, "exited", "The server exited"))
    if started is not None and (server.started is None or abs(started - server.started) > _SAME_S):
        server.marks.append(_Mark(started, "started", "The server started"))
        server.started = started
    server.up = document["up"]


def _compare_toggles(server: _Server, at: float, toggles: list[dict[str, Any]]) -> None:
    current: dict[_Toggle, str] = {(one["toggle"], one["value"], one["since"]): one["who"] for one in toggles}
    for toggle, user in current.items():
        if toggle not in server.toggles:
            name, value, since = toggle
            by = f" by {user}" if user else ""
            when = at if since is None else since
            server.marks.append(_Mark(when, "toggle_set", f"Toggle {name} = {value}{by}"))
    for name in {one[0] for one in server.toggles} - {one[0] for one in current}:
        server.marks.append(_Mark(at, "toggle_undone", f"Toggle {name} is not in force"))
    server.toggles = current
