"""Watch one server for ``innoscope watch``, with this process's own snapshots, probes and SQL connection."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from innoscope.common.errors import CannotWrite, InnoscopeError, NoTarget
from innoscope.diagnose.collect import EvidenceCollector
from innoscope.diagnose.host import HostCounters
from innoscope.diagnose.incident.facts_fetcher import FactsFetcher
from innoscope.diagnose.sql_queries import SqlAnswers
from innoscope.diagnose.watch.events import worst_finding
from innoscope.diagnose.watch.loop import Stalled, Triggered, TriggerUnavailable, Watcher
from innoscope.diagnose.watch.triggers import shown
from innoscope.target.discover import find_one, still_same

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from pathlib import Path

    from innoscope.diagnose.collect import Sources
    from innoscope.diagnose.incident.server_facts import ServerFacts
    from innoscope.diagnose.watch.events import EventWriter
    from innoscope.diagnose.watch.folder import IncidentFolder
    from innoscope.diagnose.watch.loop import Event, WatchSettings
    from innoscope.target.model import Target

#: Seconds between snapshots, and between steps, each of which reads all metrics and evaluates the triggers.
EVERY_S: Final = 1.0
#: Seconds between searches for the successor of a server that has exited.
_SEARCH_S: Final = 2.0
#: Host rates cover at least this many seconds (fewer at the start of the watch) and at most twice as many.
_HOST_S: Final = 10.0


class _Recorder(EvidenceCollector):
    """Collects evidence as diagnose does, but without a time limit and in bounded memory, for a Watcher."""

    def __init__(self, target: Target, sources: Sources, span_s: float) -> None:
        self._fetcher, self._use_sql = FactsFetcher(target), sources.sql
        super().__init__(target, replace(sources, also=self._fetcher), span_s=span_s, interval_s=EVERY_S)
        self._hosts = [(time.monotonic(), self._host)]

    def read(self) -> None:
        """Read all metrics once. Drop old host counters, so that the host's rates cover only recent time."""
        super().read()
        if time.monotonic() - self._hosts[-1][0] > _HOST_S:
            self._host = self._hosts[-1][1]
            self._hosts = [self._hosts[-1], (time.monotonic(), HostCounters(self._target.pid))]

    def begin(self) -> None:
        """Start recording lock owners, and forget the server facts of an earlier stall."""
        self._fetcher.fetched = FactsFetcher().fetched
        self.hold()

    def query_locks(self) -> SqlAnswers:
        """Run the SQL queries, unless SQL is disabled."""
        return super().query_locks() if self._use_sql else SqlAnswers()

    def end(self) -> ServerFacts:
        """Stop recording lock owners, and return the server facts."""
        self.release()
        return self._fetcher.fetched


@dataclass(frozen=True, slots=True)
class LiveWatch:
    """Watches a server until ``ended`` is set or, with ``once``, until the first capture is written."""

    target: Target
    sources: Sources
    settings: WatchSettings
    folder: IncidentFolder
    event_writer: EventWriter
    once: bool = False

    def run(self, ended: threading.Event) -> Path | None:
        """Watch the server. With ``once``, return the first file written; None if ``ended`` was set."""
        target: Target | None = self.target
        while target is not None and not ended.is_set():
            with contextlib.closing(_Recorder(target, self.sources, self.settings.span_s)) as recorder:
                written = self._watch(target, recorder, ended)
            if written is not None:
                return written
            if not ended.is_set():
                words = f"the server (pid {target.pid}) has exited; waiting for a new one"
                self.event_writer.write("ended", words)
                target = self._wait_for_successor(target, ended)
        return None

    def _announce(self, target: Target) -> None:
        flavour = {"mysql": "MySQL", "mariadb": "MariaDB"}.get(target.flavour, target.flavour)
        rules = ", ".join(trigger.text for trigger in self.settings.triggers)
        words = f"watching {flavour} {target.version_text} · pid {target.pid} for {rules}"
        self.event_writer.write("watching", words, pid=target.pid, triggers=rules.split(", "))

    def _watch(self, target: Target, recorder: _Recorder, ended: threading.Event) -> Path | None:
        watcher = Watcher(recorder, self.settings, time.time())
        due, announced = time.monotonic(), False
        while not ended.is_set() and still_same(target):
            recorder.read()
            if not announced and recorder.ready:
                announced = True
                self._announce(target)
            for event in watcher.step(time.time()):
                written = self._report(event)
                if written is not None and self.once:
                    return written
            due = max(due + EVERY_S, time.monotonic())
            ended.wait(due - time.monotonic())
        last = None if ended.is_set() else watcher.finish_early(time.time())
        written = self._report(last) if last else None
        return written if self.once else None

    def _report(self, event: Event) -> Path | None:
        if isinstance(event, TriggerUnavailable):
            words = f"{event.trigger.text} is unavailable: {event.words}"
            self.event_writer.write("blind", words, trigger=event.trigger.text)
        elif isinstance(event, Triggered):
            next_step = f"collecting for {self.settings.seconds:g} s"
            words = f"{event.trigger.text} holds ({shown(event.number)}): {next_step}"
            self.event_writer.write("triggered", words, trigger=event.trigger.text, since=event.since)
        else:
            return self._write(event)
        return None

    def _write(self, stalled: Stalled) -> Path | None:
        capture, verdict = stalled.capture()
        try:
            path = self.folder.save(capture)
        except CannotWrite as error:  # the next capture may succeed
            self.event_writer.write("failed", error.what, remedy=error.remedy)
            return None
        words = f"{path}: {worst_finding(verdict)}"
        findings = [{"name": one.name, "score": round(one.score, 1)} for one in verdict.findings]
        trigger = stalled.trigger.text
        self.event_writer.write("captured", words, file=str(path), findings=findings, trigger=trigger)
        return path

    def _wait_for_successor(self, target: Target, ended: threading.Event) -> Target | None:
        """Wait for a server on the same socket or port, and return it; None if ``ended`` was set."""
        while not ended.wait(_SEARCH_S):
            with contextlib.suppress(InnoscopeError, OSError):
                found = _successor(target)
                if found is not None:
                    return found
        return None


def _successor(target: Target, find: Callable[..., Target] = find_one) -> Target | None:
    """Return the server that is listening on the target's socket or port.

    Return None if there is none. The result is not marked as chosen by the user, because it may be a
    different server, for example in a container.
    """
    try:
        found = find(None, target.socket, None if target.socket else target.port)
    except NoTarget:
        return None
    return replace(found, chosen=False)
