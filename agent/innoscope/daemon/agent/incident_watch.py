"""Evaluate the triggers of the ``[watch]`` section every second, and write incident files about stalls."""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from innoscope.common.errors import InnoscopeError
from innoscope.common.samples import Sample
from innoscope.diagnose.watch.events import worst_finding
from innoscope.diagnose.watch.loop import Stalled, Triggered, TriggerUnavailable, Watcher, WatchSettings
from innoscope.diagnose.watch.triggers import parse, shown

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from innoscope.common.supervision import Beat
    from innoscope.daemon.agent.collect import Gatherer
    from innoscope.daemon.agent.config import Watch
    from innoscope.daemon.agent.incidents import Incidents
    from innoscope.daemon.agent.recorder import Recorders, ServerRecorder
    from innoscope.diagnose.verdict import Verdict
    from innoscope.diagnose.watch.loop import Event

_log = logging.getLogger(__name__)

_EVERY_S: Final = 1.0
#: Seconds until the directory is checked again after a failed check or write.
_RETRY_S: Final = 60.0
_REMEDY: Final = "watch.directory in agent.toml must be a directory that the agent can write"


def settings(watch: Watch) -> WatchSettings:
    """Convert the ``[watch]`` section to the settings of a Watcher."""
    return WatchSettings(
        tuple(parse(rule) for rule in watch.triggers),
        watch.for_seconds,
        watch.seconds,
        watch.before_seconds,
        watch.cooldown_seconds,
    )


class IncidentWatch:
    """Watches all servers on this host. Only one thread may call ``run``.

    If the directory of the incident files is not writable, captures fail, and the directory is checked once a
    minute until it is writable. ``clock`` is monotonic. ``on_file`` is called after each incident file is
    written, with the server, the file's name, the capture and the verdict.
    """

    def __init__(
        self,
        settings: WatchSettings,
        gatherer: Gatherer,
        recorders: Recorders,
        incidents: Incidents,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._gatherer, self._recorders, self._incidents = gatherer, recorders, incidents
        self._watchers: dict[str, tuple[ServerRecorder, Watcher]] = {}
        self.files_written: Counter[str] = Counter()
        self.last_written_at: dict[str, float] = {}
        self._clock = clock
        self._writable = False
        self._check_at = clock()
        self._why: str | None = None
        self.on_file: Callable[[str, str, Stalled, Verdict], None] = lambda *_: None

    def run(self, ended: threading.Event, beat: Beat) -> None:
        """Evaluate the triggers every second until ``ended`` is set."""
        due = time.monotonic()
        while not ended.wait(max(0.0, due - time.monotonic())):
            beat()
            due = max(due + _EVERY_S, time.monotonic())
            try:
                self.check_folder()
                self._second(beat)
            except Exception:  # retry a second later
                _log.exception("cannot evaluate triggers")

    def check_folder(self) -> None:
        """Create and check the directory of the incident files, if a check is due."""
        if self._writable or self._clock() < self._check_at:
            return
        try:
            self._incidents.prepare()
        except InnoscopeError as error:
            self._failed(error)
            return
        self._succeeded()

    def own_samples(self) -> list[Sample]:
        """Return the metric that shows whether incident files can be written."""
        return [Sample("watch_up", int(self._writable))]

    def samples(self, server: str) -> list[Sample]:
        """Return the incident metrics of a server."""
        samples = [Sample("incidents", self.files_written[server])]
        if server in self.last_written_at:
            samples.append(Sample("incident_timestamp_seconds", self.last_written_at[server]))
        return samples

    def _second(self, beat: Beat) -> None:
        scrape = self._gatherer.gather()
        if scrape is not None:
            self._recorders.add_scrape(time.time() - self._gatherer.age(), scrape)
        current = self._recorders.all()
        for name, (recorder, watcher) in list(self._watchers.items()):
            if current.get(name) is not recorder:
                self._handle_event(name, watcher.finish_early(time.time()))
                del self._watchers[name]
                if name not in current:
                    self.files_written.pop(name, None)
                    self.last_written_at.pop(name, None)
        for name, recorder in current.items():
            beat()  # a server that does not answer SQL can take seconds
            now = time.time()
            if name not in self._watchers:
                self._watchers[name] = recorder, Watcher(recorder, self._settings, now)
            for event in self._watchers[name][1].step(now):
                self._handle_event(name, event)

    def _handle_event(self, server: str, event: Event | None) -> None:
        if isinstance(event, Stalled):
            self.write(server, event)
        elif isinstance(event, Triggered):
            extra = {"server": server, "trigger": event.trigger.text, "value": shown(event.number)}
            _log.warning("capturing a stall", extra=extra)
        elif isinstance(event, TriggerUnavailable):
            extra = {"server": server, "trigger": event.trigger.text, "reason": event.words}
            _log.warning("cannot evaluate a trigger", extra=extra)

    def write(self, server: str, stalled: Stalled) -> None:
        """Write an incident file. Failures are logged."""
        try:
            if not self._writable:
                self._incidents.prepare()
            path, verdict = self._incidents.put(server, stalled)
        except InnoscopeError as error:
            _log.error("cannot write an incident file", extra={"server": server, "error": error.what})
            self._failed(error)
            return
        self._succeeded()
        self.files_written[server] += 1
        self.last_written_at[server] = time.time()
        extra = {"server": server, "file": str(path), "finding": worst_finding(verdict)}
        _log.warning("incident file written", extra=extra)
        self.on_file(server, path.name, stalled, verdict)

    def _succeeded(self) -> None:
        if self._why is not None:
            _log.info("incidents can be captured again")
        self._writable, self._why = True, None

    def _failed(self, error: InnoscopeError) -> None:
        """Schedule the next check of the directory. Log each reason once."""
        self._writable = False
        self._check_at = self._clock() + _RETRY_S
        if error.what != self._why:
            _log.error("cannot capture incidents", extra={"error": error.what, "remedy": _REMEDY})
        self._why = error.what
