"""Take a series of snapshots, optionally with SQL statements."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from innoscope.common.errors import InnoscopeError, SqlFailed
from innoscope.sampling.engine import attach_queries

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from innoscope.sampling.fold import StackReport
    from innoscope.sampling.model import Snapshot
    from innoscope.target.model import Query


class SnapshotSource(Protocol):
    """An object that takes snapshots, such as ``Engine``."""

    def take_snapshot(self) -> Snapshot:
        """Take one snapshot."""


def take_snapshots(
    source: SnapshotSource,
    report: StackReport,
    *,
    count: int = 1,
    interval_s: float = 1.0,
    fetch_queries: Callable[[], Mapping[int, Query]] | None = None,
    each: Callable[[Snapshot], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> InnoscopeError | None:
    """Add ``count`` snapshots to the report, and call ``each`` with every filtered snapshot.

    Ctrl-C or an error ends the series early. If a snapshot has been taken by then, ``report.ended``
    contains the reason, and an error is returned. Otherwise, KeyboardInterrupt or the error is raised.
    """
    start = time.monotonic()
    try:
        for number in range(count):
            _sleep_until(start + number * interval_s)
            snapshot = source.take_snapshot()
            if fetch_queries is not None:
                snapshot, fetch_queries = _with_queries(snapshot, fetch_queries)
            filtered = report.add(snapshot)
            if each is not None:
                each(filtered)
            if progress is not None:
                progress(number + 1)
    except KeyboardInterrupt:
        if not report.snapshots:
            raise
        report.ended = f"interrupted after {report.snapshots:,} of {count:,} snapshots"
    except InnoscopeError as error:
        if not report.snapshots:
            raise
        report.ended = f"{error.what}, after {report.snapshots:,} of {count:,} snapshots"
        return error
    return None


def _with_queries(
    snapshot: Snapshot, fetch_queries: Callable[[], Mapping[int, Query]]
) -> tuple[Snapshot, Callable[[], Mapping[int, Query]] | None]:
    """Attach the statements to the snapshot. Return it, and the function that fetches the next statements.

    After an SQL failure, add a note to the snapshot, and return None instead of the function.
    """
    try:
        return attach_queries(snapshot, fetch_queries()), fetch_queries
    except SqlFailed as error:
        return replace(snapshot, notes=(*snapshot.notes, f"no queries: {error.in_one_line}")), None


def _sleep_until(deadline: float) -> None:
    if (remaining := deadline - time.monotonic()) > 0:
        time.sleep(remaining)
