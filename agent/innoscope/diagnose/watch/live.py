"""Watching one server from the command line: the engine, the probes and SQL are our own, as in diagnose."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from innoscope.common.errors import CannotWrite, InnoscopeError, NoTarget
from innoscope.diagnose.collect import Gathering
from innoscope.diagnose.host import Host
from innoscope.diagnose.incident.server_facts import Fetcher
from innoscope.diagnose.sql_queries import Asked
from innoscope.diagnose.watch.events import first_finding
from innoscope.diagnose.watch.loop import Blind, Stalled, Triggered, Watcher
from innoscope.diagnose.watch.triggers import shown
from innoscope.target.discover import find_one, still_same

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from pathlib import Path

    from innoscope.diagnose.collect import Sources
    from innoscope.diagnose.incident.server_facts import Fetched
    from innoscope.diagnose.watch.events import Teller
    from innoscope.diagnose.watch.folder import Shelf
    from innoscope.diagnose.watch.loop import Event, Settings
    from innoscope.target.model import Target

#: Seconds between two readings, two looks and two judgements.
EVERY_S: Final = 1.0
#: Seconds between two searches for a server that has ended.
_SEARCH_S: Final = 2.0
#: What the host tells is of so many seconds at the least, and of twice that at the most.
_HOST_S: Final = 10.0


class _Recorder(Gathering):
    """Of one server: what diagnose gathers, for as long as we watch and bounded; the source of a watcher."""

    def __init__(self, target: Target, sources: Sources, span_s: float) -> None:
        self._fetcher, self._may_ask = Fetcher(target), sources.sql
        super().__init__(target, replace(sources, also=self._fetcher), span_s=span_s, interval_s=EVERY_S)
        self._hosts = [(time.monotonic(), self._host)]

    def read(self) -> None:
        """One reading; what the host tells is of the last seconds, not of all the time that we watch."""
        super().read()
        if time.monotonic() - self._hosts[-1][0] > _HOST_S:
            self._host = self._hosts[-1][1]
            self._hosts = [self._hosts[-1], (time.monotonic(), Host(self._target.pid))]

    def begin(self) -> None:
        """A stall is being gathered from now on."""
        self._fetcher.fetched = Fetcher().fetched
        self.hold()

    def ask(self) -> Asked:
        """Who holds what, unless nothing may be asked."""
        return super().ask() if self._may_ask else Asked()

    def end(self) -> Fetched:
        """It is complete."""
        self.release()
        return self._fetcher.fetched


@dataclass(frozen=True, slots=True)
class Live:
    """Watches until it is told to end. ``once``: until the first capture is written."""

    target: Target
    sources: Sources
    settings: Settings
    shelf: Shelf
    teller: Teller
    once: bool = False

    def run(self, ended: threading.Event) -> Path | None:
        """The file that was written, where one is enough; None when it was told to end."""
        target: Target | None = self.target
        while target is not None and not ended.is_set():
            with contextlib.closing(_Recorder(target, self.sources, self.settings.span_s)) as recorder:
                written = self._watch(target, recorder, ended)
            if written is not None:
                return written
            if not ended.is_set():
                self.teller.tell("ended", f"the server (pid {target.pid}) has ended; it is waited for")
                target = self._again(target, ended)
        return None

    def _say_hello(self, target: Target) -> None:
        flavour = {"mysql": "MySQL", "mariadb": "MariaDB"}.get(target.flavour, target.flavour)
        rules = ", ".join(trigger.text for trigger in self.settings.triggers)
        words = f"watching {flavour} {target.version_text} · pid {target.pid} for {rules}"
        self.teller.tell("watching", words, pid=target.pid, triggers=rules.split(", "))

    def _watch(self, target: Target, recorder: _Recorder, ended: threading.Event) -> Path | None:
        watcher = Watcher(recorder, self.settings, time.time())
        due, greeted = time.monotonic(), False
        while not ended.is_set() and still_same(target):
            recorder.read()
            if not greeted and recorder.looking:
                greeted = True
                self._say_hello(target)
            for event in watcher.step(time.time()):
                written = self._tell(event)
                if written is not None and self.once:
                    return written
            due = max(due + EVERY_S, time.monotonic())
            ended.wait(due - time.monotonic())
        cut_short = None if ended.is_set() else watcher.cut_short(time.time())
        written = self._tell(cut_short) if cut_short else None
        return written if self.once else None

    def _tell(self, event: Event) -> Path | None:
        if isinstance(event, Blind):
            words = f"{event.trigger.text} cannot be told: {event.words}"
            self.teller.tell("blind", words, trigger=event.trigger.text)
        elif isinstance(event, Triggered):
            going_on = f"gathering for {self.settings.seconds:g} s"
            words = f"{event.trigger.text} holds ({shown(event.number)}): {going_on}"
            self.teller.tell("triggered", words, trigger=event.trigger.text, since=event.since)
        else:
            return self._write(event)
        return None

    def _write(self, stalled: Stalled) -> Path | None:
        capture, verdict = stalled.capture()
        try:
            path = self.shelf.put(capture)
        except CannotWrite as error:  # there may be room for the next one
            self.teller.tell("failed", error.what, remedy=error.remedy)
            return None
        words = f"{path}: {first_finding(verdict)}"
        findings = [{"name": one.name, "score": round(one.score, 1)} for one in verdict.findings]
        self.teller.tell("captured", words, file=str(path), findings=findings, trigger=stalled.trigger.text)
        return path

    def _again(self, target: Target, ended: threading.Event) -> Target | None:
        """The server that takes its place: on the same socket, or port."""
        while not ended.wait(_SEARCH_S):
            with contextlib.suppress(InnoscopeError, OSError):
                found = _in_its_place(target)
                if found is not None:
                    return found
        return None


def _in_its_place(target: Target, find: Callable[..., Target] = find_one) -> Target | None:
    """Return who listens there now. Nobody has chosen that process: it may be a container's."""
    try:
        found = find(None, target.socket, None if target.socket else target.port)
    except NoTarget:
        return None
    return replace(found, chosen=False)
