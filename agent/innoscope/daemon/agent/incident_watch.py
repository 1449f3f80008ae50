"""``[watch]`` of the configuration: all rules are judged each second, a stall becomes an incident file."""

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
_GATHERING_S: Final = 0.8


def settings(watch: Watch) -> Settings:
    """As a watcher wants them."""
    return Settings(
        tuple(parse(rule) for rule in watch.triggers),
        watch.for_seconds,
        watch.seconds,
        watch.before_seconds,
        watch.cooldown_seconds,
    )


class Watching:
    """All servers of this host. ``run`` belongs to one thread."""

    def __init__(
        self, settings: Settings, gatherer: Gatherer, recorders: Recorders, incidents: Incidents
    ) -> None:
        self._settings = settings
        self._gatherer, self._recorders, self._incidents = gatherer, recorders, incidents
        self._watchers: dict[str, tuple[Recorder, Watcher]] = {}
        self.taken: Counter[str] = Counter()
        self.taken_at: dict[str, float] = {}

    def run(self, ended: threading.Event, beat: Beat) -> None:
        """Until ``ended`` is set."""
        due = time.monotonic()
        while not ended.wait(max(0.0, due - time.monotonic())):
            beat()
            due = max(due + _EVERY_S, time.monotonic())
            try:
                self._second()
            except Exception:  # the next second may do better
                _log.exception("not watched")

    def samples(self, server: str) -> list[Sample]:
        """What metrics.yaml declares of a server's incidents."""
        told = [Sample("incidents", self.taken[server])]
        if server in self.taken_at:
            told.append(Sample("incident_timestamp_seconds", self.taken_at[server]))
        return told

    def _second(self) -> None:
        picture = self._gatherer.gather(_GATHERING_S)
        if picture is not None:
            self._recorders.gathered(time.time() - self._gatherer.age(), picture)
        there_are = self._recorders.all()
        for name, (recorder, watcher) in list(self._watchers.items()):
            if there_are.get(name) is not recorder:
                self._tell(name, watcher.finish_early(time.time()))
                del self._watchers[name]
                if name not in there_are:
                    self.taken.pop(name, None)
                    self.taken_at.pop(name, None)
        for name, recorder in there_are.items():
            now = time.time()
            if name not in self._watchers:
                self._watchers[name] = recorder, Watcher(recorder, self._settings, now)
            for event in self._watchers[name][1].step(now):
                self._tell(name, event)

    def _tell(self, server: str, event: Event | None) -> None:
        if isinstance(event, Stalled):
            self._write(server, event)
        elif isinstance(event, Triggered):
            extra = {"server": server, "trigger": event.trigger.text, "value": shown(event.number)}
            _log.warning("a stall is gathered", extra=extra)
        elif isinstance(event, TriggerUnavailable):
            extra = {"server": server, "trigger": event.trigger.text, "reason": event.words}
            _log.warning("a trigger cannot be told", extra=extra)

    def _write(self, server: str, stalled: Stalled) -> None:
        try:
            path, verdict = self._incidents.put(server, stalled)
        except InnoscopeError as error:
            _log.error("no incident file", extra={"server": server, "error": error.what})
            return
        self.taken[server] += 1
        self.taken_at[server] = time.time()
        extra = {"server": server, "file": str(path), "finding": worst_finding(verdict)}
        _log.warning("incident file written", extra=extra)
