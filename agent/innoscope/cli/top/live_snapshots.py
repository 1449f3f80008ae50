"""Take snapshots of a live server one at a time, optionally with statements and a recording."""

from __future__ import annotations

import os
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from innoscope.common.errors import InnoscopeError
from innoscope.sampling.engine import attach_queries

if TYPE_CHECKING:
    from innoscope.cli.top.statements import QueryFeed
    from innoscope.sampling.model import Snapshot
    from innoscope.sampling.recording import RecordingWriter
    from innoscope.sampling.snapshot_series import SnapshotSource

SQL_PATIENCE_S = 0.2


@dataclass(frozen=True, slots=True)
class SnapshotResult:
    """One snapshot, and the errors of its SQL query and of the recording, if any."""

    snapshot: Snapshot
    sql_problem: str | None = None
    record_problem: str | None = None


class LiveSnapshots:
    """Takes snapshots. Not thread-safe: the caller must not take two snapshots at the same time."""

    def __init__(
        self,
        source: SnapshotSource,
        *,
        feed: QueryFeed | None = None,
        recorder: RecordingWriter | None = None,
        patience_s: float = SQL_PATIENCE_S,
    ) -> None:
        """Take snapshots from ``source``. Each waits up to ``patience_s`` seconds for the SQL result."""
        self._patience_s = patience_s
        self._source = source
        self._feed = feed
        self.recorder = recorder
        self._record_problem: str | None = None

    def take(self) -> SnapshotResult:
        """Take a snapshot. Raise the engine's errors, but return errors of SQL and of the recording."""
        if self._feed:
            self._feed.ask()
        snapshot = self._source.take_snapshot()
        if self._feed and (queries := self._feed.take(self._patience_s)):
            snapshot = attach_queries(snapshot, queries)
        self._record(snapshot)
        return SnapshotResult(snapshot, self._feed.problem if self._feed else None, self._record_problem)

    def _record(self, snapshot: Snapshot) -> None:
        if self.recorder is None or self._record_problem:
            return
        try:
            self.recorder.write(snapshot)
        except InnoscopeError as error:
            self._record_problem = (
                f"recording stopped after {self.recorder.snapshots:,} snapshots: {error.what}"
            )


class OwnCost:
    """Measures the CPU time of this process over the last ``span_s`` seconds."""

    def __init__(self, span_s: float = 10.0) -> None:
        self._span_s = span_s
        self._marks: deque[tuple[float, float]] = deque()

    def mark(self) -> float | None:
        """Record the CPU time. Return the percentage of one core used since the oldest record, if any."""
        times = os.times()
        now, used = time.monotonic(), times.user + times.system
        percent = None
        if self._marks and now > self._marks[0][0]:
            percent = 100 * (used - self._marks[0][1]) / (now - self._marks[0][0])
        self._marks.append((now, used))
        while self._marks[0][0] < now - self._span_s:
            self._marks.popleft()
        return percent
