"""Build phrases that several formats share: the headline, the server, counts."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from innoscope.common import sanitize
from innoscope.sampling.classify import label
from innoscope.sampling.fold import DOUBTFUL, THREADS
from innoscope.sampling.model import Trust

if TYPE_CHECKING:
    from collections.abc import Mapping

    from innoscope.sampling.fold import FoldedGroup, StackReport, Unit
    from innoscope.target.model import Target

_STOPPING = "each thread was stopped briefly (ptrace)"


def headline(report: StackReport) -> str:
    """Return the headline of a report.

    For example ``1,021 threads in 4.8 ms: 1,000 idle, 12 row lock · 1,020 exact, 1 on-cpu · not stopped``.
    """
    if report.headline:
        return report.headline + (f" · showing {share(report.shown, report)}" if report.wanted else "")
    waits = ", ".join(f"{count:,} {label(wait)}" for wait, count in report.waits.most_common())
    stopped = _STOPPING if report.method == "ptrace" else "not stopped"
    parts = [f"{_scope(report)}: {waits or 'none'}", trust(report.tally) or "nothing seen", stopped]
    if report.wanted:
        parts.append(f"showing {report.shown:,}")
    return " · ".join(parts)


def marks(group: FoldedGroup, unit: Unit) -> str:
    """Return ``group.marks``, but with percentages instead of counts if the unit is not threads."""
    if unit is THREADS:
        return group.marks
    found = [(level, group.trust[level]) for level in DOUBTFUL if group.trust[level]]
    return " ".join(
        f"[{level}]" if number == group.count else f"[{100 * number / group.count:.1f} % {level}]"
        for level, number in found
    )


def share(count: int, report: StackReport) -> str:
    """Return the share of the whole report, such as ``12.3 %``."""
    return f"{100 * count / max(report.threads, 1):.1f} %"


def lost_records(count: int) -> str:
    """Return a note on lost records: a ring buffer, the map of threads or the list of statements was full."""
    return f"{count:,} record{' was' if count == 1 else 's were'} lost: a buffer or a map was full"


def _scope(report: StackReport) -> str:
    """Return the number of threads and the time span."""
    threads = f"{report.threads:,} thread{'s' if report.threads != 1 else ''}"
    if report.snapshots <= 1:
        return f"{threads} in {milliseconds(report.durations_ms[0])}" if report.durations_ms else threads
    seconds = report.ended_at - report.started_at
    each = milliseconds(median(report.durations_ms))
    return f"{threads} in {report.snapshots:,} snapshots over {seconds:.1f} s ({each} each)"


def milliseconds(value: float) -> str:
    """Return a number of milliseconds as ``0.05 ms``, ``4.8 ms`` or ``120 ms``."""
    return f"{value:.2f} ms" if value < 1 else f"{value:.1f} ms" if value < 100 else f"{value:,.0f} ms"


def trust(tally: Mapping[str, int]) -> str:
    """Return the trust levels that occur, best first, such as ``1,020 exact, 1 on-cpu``."""
    return ", ".join(f"{tally[level]:,} {level.replace('_', '-')}" for level in Trust if tally.get(level))


def server(target: Target) -> str:
    """Return a server's description, such as ``MySQL 5.6.24 · pid 1234 · /tmp/mysql.sock``."""
    name = "MariaDB" if target.flavour == "mariadb" else "MySQL"
    where = target.socket or (f"port {target.port}" if target.port else None)
    parts = [f"{name} {target.version_text}".strip(), f"pid {target.pid}", where]
    parts.append(f"in {target.container}" if target.container else None)
    parts.append("its executable was replaced since it started" if target.deleted else None)
    return " · ".join(part for part in parts if part)


def labels(group: FoldedGroup) -> list[str]:
    """Return the functions of a stack, innermost first. Inlined functions are marked."""
    names = [sanitize.line(frame.label) for frame in group.frames]
    inlined = zip(names, group.frames, strict=True)
    return [f"{name} (inlined)" if frame.inlined else name for name, frame in inlined]


def split(group: FoldedGroup) -> list[tuple[str | None, int]]:
    """Return the count of reliable stacks, if any, then the count at each unreliable trust level.

    For example ``[(None, 3), ("stale", 1)]``.
    """
    doubtful = [(level.value, group.trust[level]) for level in DOUBTFUL if group.trust[level]]
    sound = group.count - sum(count for _, count in doubtful)
    return [*([(None, sound)] if sound else []), *doubtful]


def clean(text: str) -> str:
    """Return an untrusted statement or thread name, sanitized and on one line."""
    return sanitize.words(text)
