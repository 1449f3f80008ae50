"""Looking several times, with statements beside the stacks, until enough, interrupted or the server ends."""

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


class Eyes(Protocol):
    """What takes one look: the engine."""

    def look(self) -> Dump:
        """One look."""


def gather(
    eyes: Eyes,
    report: Report,
    *,
    count: int = 1,
    interval_s: float = 1.0,
    ask: Callable[[], Mapping[int, Query]] | None = None,
    each: Callable[[Dump], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> InnoscopeError | None:
    """Add ``count`` looks to the report; ``each`` is given every look as the filter left it.

    Ctrl-C and an error after the first look end it early: the report says so in ``ended``, the error is
    returned. Before the first look both come through.
    """
    start = time.monotonic()
    try:
        for number in range(count):
            _sleep_until(start + number * interval_s)
            dump = eyes.look()
            if ask is not None:
                dump, ask = _with_queries(dump, ask)
            kept = report.add(dump)
            if each is not None:
                each(kept)
            if progress is not None:
                progress(number + 1)
    except KeyboardInterrupt:
        if not report.looks:
            raise
        report.ended = f"interrupted after {report.looks:,} of {count:,} looks"
    except InnoscopeError as error:
        if not report.looks:
            raise
        report.ended = f"{error.what}, after {report.looks:,} of {count:,} looks"
        return error
    return None


def _with_queries(
    dump: Dump, ask: Callable[[], Mapping[int, Query]]
) -> tuple[Dump, Callable[[], Mapping[int, Query]] | None]:
    """The dump with its statements. A server that does not answer is not asked again, and a note says why."""
    try:
        return attach_queries(dump, ask()), ask
    except SqlFailed as error:
        remedy = f" ({error.remedy})" if error.remedy else ""
        return replace(dump, notes=(*dump.notes, f"no queries: {error.what}{remedy}")), None


def _sleep_until(moment: float) -> None:
    if (rest := moment - time.monotonic()) > 0:
        time.sleep(rest)
