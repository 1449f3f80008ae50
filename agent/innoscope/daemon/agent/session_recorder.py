"""Fetch samples of busy threads from the sensor, keep recent ones in memory, and write all to disk."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, Final, Protocol

from innoscope.common.errors import InnoscopeError
from innoscope.common.samples import Sample
from innoscope.daemon.protocol.client import SensorDown

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from innoscope.common.supervision import Beat
    from innoscope.daemon.agent.session_hour import SessionHour
    from innoscope.daemon.protocol.client import Cursor, Page, ServerSamples
    from innoscope.sampling.sessions.store import HistoryStore
    from innoscope.target.model import Target

_log = logging.getLogger(__name__)

#: Maximum number of requests per poll. For one server, three usually fetch all that the sensor buffers.
_MAX_REQUESTS: Final = 100
#: Seconds between attempts to create the directory of the files.
_RETRY_S: Final = 60.0


class SamplesApi(Protocol):
    """The part of ``SensorClient`` that the recorder needs."""

    def samples(self, cursor: Cursor) -> Page[ServerSamples]:
        """Return the samples after ``cursor`` by server."""


class SessionRecorder:
    """Records the samples of all servers.

    ``own_name`` maps the sensor's name for a server to the agent's name, or to None to exclude the server.

    ``hour`` keeps them in memory. ``store`` writes them to disk; None disables this. While its directory is
    not writable, samples are kept only in memory and counted as lost.

    The sensor numbers its snapshots. The last numbers are stored with the samples, so that a restarted agent
    does not store samples twice. Call ``run`` in a separate thread, because writes wait for the disk. Only
    ``samples`` is thread-safe.
    """

    def __init__(
        self,
        sensor: SamplesApi,
        own_name: Callable[[str, Target], str | None],
        poll_s: float,
        hour: SessionHour,
        store: HistoryStore | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sensor = sensor
        self._own_name = own_name
        self._poll_s = poll_s
        self._hour = hour
        self._configured_store = store
        self._store: HistoryStore | None = None  # once its directory is prepared
        self._clock = clock
        self._prepare_at = -math.inf
        self._why_not_prepared: str | None = None
        self._cursor: Cursor = {}
        self._why: str | None = None

    def prepare(self) -> None:
        """Create the directory of the files, if that is due. Failures are logged once, and retried later."""
        store = self._configured_store
        if store is None or self._store is not None or self._clock() < self._prepare_at:
            return
        self._prepare_at = self._clock() + _RETRY_S
        try:
            store.prepare()
        except InnoscopeError as error:
            if error.what != self._why_not_prepared:
                _log.error("no history", extra={"error": error.what, "remedy": error.remedy})
            self._why_not_prepared = error.what
            return
        # The current cursor takes precedence, so that samples fetched in the meantime are not fetched again.
        self._cursor = store.cursor | self._cursor
        self._store = store
        if self._why_not_prepared is not None:
            _log.info("the history can be written", extra={"folder": str(store.folder)})

    def run(self, ended: threading.Event, beat: Beat) -> None:
        """Record samples until ``ended`` is set, then write the rest."""
        while not ended.is_set():
            beat()
            try:
                self.prepare()
            except Exception:
                _log.exception("cannot prepare the history")
            self.poll(beat)
            ended.wait(self._poll_s)
        if self._store is not None:
            self._store.close()

    def poll(self, beat: Beat = lambda: None) -> None:
        """Fetch new samples, and write parts that are due. Failures are logged, not raised."""
        try:
            for _ in range(_MAX_REQUESTS):
                beat()
                if not self._fetch():
                    break  # the sensor has no more
            self._why = None
        except SensorDown as error:
            if error.what != self._why:  # report each reason once
                _log.info("cannot fetch samples", extra={"reason": error.what})
            self._why = error.what
        except Exception:
            _log.exception("cannot record samples")
        try:
            if self._store is not None:
                self._store.tick()
        except Exception:
            _log.exception("cannot write the history")

    def samples(self) -> list[Sample]:
        """Return the metrics of the history on disk."""
        if self._configured_store is None:
            return []
        counts = self._configured_store.counts
        return [
            Sample("history_samples", counts.rows),
            Sample("history_lost_samples", counts.lost_rows),
            Sample("history_failures", counts.failures),
            Sample("history_bytes", counts.bytes),
            Sample("history_up", int(self._store is not None and counts.failure is None)),
        ]

    def _fetch(self) -> bool:
        """Fetch and add samples. Return whether there are more."""
        page = self._sensor.samples(self._cursor)
        self._cursor = self._cursor | page.cursor
        if self._store is not None:
            self._store.cursor = self._cursor
        for sensor_name, one in page.servers.items():
            name = self._own_name(sensor_name, one.target)
            if name is None or not one.batch.snapshots:
                continue
            if self._store is not None:
                self._store.add(name, one.batch)
            elif self._configured_store is not None:
                lost = sum(len(snapshot.tids) for snapshot in one.batch.snapshots)
                self._configured_store.counts.lost_rows += lost
            self._hour.add(name, one.batch)
        return page.more
