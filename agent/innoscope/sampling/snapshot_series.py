"""Take a series of snapshots, optionally with SQL statements."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from innoscope.common.errors import InnoscopeError, SqlFailed
from innoscope.sampling.engine import attach_queries

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from innoscope.sampling.fold import Report
    from innoscope.sampling.model import Dump
    from innoscope.target.model import Query


class SnapshotSource(Protocol):
    """An object that takes snapshots, such as the engine."""

    def take_snapshot(self) -> Dump:
        """Take one snapshot."""


def take_snapshots(
    source: SnapshotSource,
    report: Report,
    *,
    count: int = 1,
    interval_s: float = 1.0,
    fetch_queries: Callable[[], Mapping[int, Query]] | None = None,
    each: Callable[[Dump], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> InnoscopeError | None:
    """Add ``count`` snapshots to the report, and call ``each`` with every filtered snapshot.

    Ctrl-C or an error ends the series early. After the first snapshot, ``report.ended`` contains the reason,
    and the error is returned. Before it, KeyboardInterrupt or the error is raised.
    """
    start = time.monotonic()
    try:
        for number in range(count):
            _sleep_until(start + number * interval_s)
            dump = source.take_snapshot()
            if fetch_queries is not None:
                dump, fetch_queries = _with_queries(dump, fetch_queries)
            filtered = report.add(dump)
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
    dump: Dump, fetch_queries: Callable[[], Mapping[int, Query]]
) -> tuple[Dump, Callable[[], Mapping[int, Query]] | None]:
    """Attach the statements to the dump. Return it, and the function for the next dump.

    After an SQL failure, add a note to the dump, and return None instead of the function.
    """
    try:
        return attach_queries(dump, fetch_queries()), fetch_queries
    except SqlFailed as error:
        remedy = f" ({error.remedy})" if error.remedy else ""
        return replace(dump, notes=(*dump.notes, f"no queries: {error.what}{remedy}")), None


def _sleep_until(deadline: float) -> None:
    if (remaining := deadline - time.monotonic()) > 0:
        time.sleep(remaining)
