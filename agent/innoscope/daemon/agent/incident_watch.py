"""Evaluate the triggers of the ``[watch]`` section every second, and write incident files about stalls."""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from innoscope.common.errors import InnoscopeError
from innoscope.common.samples import Sample
from innoscope.diagnose.watch.events import worst_finding
from innoscope.diagnose.watch.loop import Settings, Stalled, Triggered, TriggerUnavailable, Watcher
from innoscope.diagnose.watch.triggers import parse, shown

if TYPE_CHECKING:
    import threading

    from innoscope.common.supervision import Beat
    from innoscope.daemon.agent.collect import Gatherer
    from innoscope.daemon.agent.config import Watch
    from innoscope.daemon.agent.incidents import Incidents
    from innoscope.daemon.agent.recorder import Recorder, Recorders
    from innoscope.diagnose.watch.loop import Event

_log = logging.getLogger(__name__)

_EVERY_S: Final = 1.0
_SCRAPE_S: Final = 0.8


def settings(watch: Watch) -> Settings:
    """Convert the ``[watch]`` section to the settings of a Watcher."""
    return Settings(
        tuple(parse(rule) for rule in watch.triggers),
        watch.for_seconds,
        watch.seconds,
        watch.before_seconds,
        watch.cooldown_seconds,
    )


class IncidentWatch:
    """Watches all servers on this host. Only one thread may call ``run``."""

    def __init__(
        self, settings: Settings, gatherer: Gatherer, recorders: Recorders, incidents: Incidents
    ) -> None:
        self._settings = settings
        self._gatherer, self._recorders, self._incidents = gatherer, recorders, incidents
        self._watchers: dict[str, tuple[Recorder, Watcher]] = {}
        self.files_written: Counter[str] = Counter()
        self.last_written_at: dict[str, float] = {}

    def run(self, ended: threading.Event, beat: Beat) -> None:
        """Evaluate the triggers every second until ``ended`` is set."""
        due = time.monotonic()
        while not ended.wait(max(0.0, due - time.monotonic())):
            beat()
            due = max(due + _EVERY_S, time.monotonic())
            try:
                self._second()
            except Exception:  # retry a second later
                _log.exception("cannot evaluate triggers")

    def samples(self, server: str) -> list[Sample]:
        """Return the incident metrics of a server."""
        samples = [Sample("incidents", self.files_written[server])]
        if server in self.last_written_at:
            samples.append(Sample("incident_timestamp_seconds", self.last_written_at[server]))
        return samples

    def _second(self) -> None:
        scrape = self._gatherer.gather(_SCRAPE_S)
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
            now = time.time()
            if name not in self._watchers:
                self._watchers[name] = recorder, Watcher(recorder, self._settings, now)
            for event in self._watchers[name][1].step(now):
                self._handle_event(name, event)

    def _handle_event(self, server: str, event: Event | None) -> None:
        if isinstance(event, Stalled):
            self._write(server, event)
        elif isinstance(event, Triggered):
            extra = {"server": server, "trigger": event.trigger.text, "value": shown(event.number)}
            _log.warning("capturing a stall", extra=extra)
        elif isinstance(event, TriggerUnavailable):
            extra = {"server": server, "trigger": event.trigger.text, "reason": event.words}
            _log.warning("cannot evaluate a trigger", extra=extra)

    def _write(self, server: str, stalled: Stalled) -> None:
        try:
            path, verdict = self._incidents.put(server, stalled)
        except InnoscopeError as error:
            _log.error("cannot write an incident file", extra={"server": server, "error": error.what})
            return
        self.files_written[server] += 1
        self.last_written_at[server] = time.time()
        extra = {"server": server, "file": str(path), "finding": worst_finding(verdict)}
        _log.warning("incident file written", extra=extra)
