"""Summarize a recording in a few lines of text."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from innoscope.cli.top.frame import Choice, FoldedSnapshot, Order
from innoscope.cli.top.lines import Widths, clock, fit, headline, leaf_first, server, stack_lines, stacks_head
from innoscope.sampling.classify import label
from innoscope.sampling.render.words import clean, trust

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from innoscope.sampling.fold import Key
    from innoscope.sampling.model import Frame
    from innoscope.sampling.recording import Recording

MOST_STACKS = 20


def summary(
    recording: Recording, columns: int = 110, progress: Callable[[int], None] | None = None
) -> Iterator[str]:
    """Yield lines with the server, the time range, the wait classes, and the top stacks and statements.

    All snapshots are parsed, which takes about 50 ms for a snapshot of 1,000 threads. ``progress`` is called
    with the number of the snapshot that is parsed next, starting at 1.
    """
    totals: Counter[Key] = Counter()
    frames: dict[Key, tuple[Frame, ...]] = {}
    statements: Counter[str] = Counter()
    for index in range(len(recording)):
        if progress:
            progress(index + 1)
        for row in FoldedSnapshot(recording.snapshot(index)).rows:
            totals[row.key] += row.count
            frames.setdefault(row.key, row.frames)
            statements.update(row.queries)
    yield from _head(recording)
    yield ""
    yield from _waits(recording)
    yield ""
    yield f"STACKS: threads per snapshot (the {MOST_STACKS} busiest of {len(totals):,})"
    for key, count in totals.most_common(MOST_STACKS):
        mean = count / len(recording)
        stack = leaf_first(frames[key], key[0])
        yield fit(f"{mean:>9,.1f} {fit(label(key[0]), 20)} {stack}", columns).rstrip()
    if statements:
        yield ""
        yield "STATEMENTS: threads per snapshot that run them"
        for text, count in statements.most_common(MOST_STACKS):
            yield fit(f"{count / len(recording):>9,.1f} {clean(text)}", columns).rstrip()


def _head(recording: Recording) -> Iterator[str]:
    first, last = recording.times[0], recording.times[-1]
    snapshot = recording.snapshot(0)
    gaps = [after - before for before, after in pairwise(recording.times)]
    pace = f", one every {median(gaps):.1f} s, longest gap {max(gaps):.1f} s" if gaps else ""
    yield f"{server(snapshot)}, {_local(first)} to {_local(last)}"
    yield f"{len(recording):,} snapshots{pace}"
    yield from recording.notes


def _waits(recording: Recording) -> Iterator[str]:
    yield f"{'WAIT CLASS':<28} {'mean':>9} {'median':>9} {'most':>9}  at"
    names = {name for counts in recording.waits for name in counts}
    rows = [(name, [counts.get(name, 0) for counts in recording.waits]) for name in names]
    for name, values in sorted(rows, key=lambda row: (-sum(row[1]), row[0])):
        most = max(values)
        when = clock(recording.times[values.index(most)])
        mean = sum(values) / len(values)
        yield f"{fit(clean(label(name)), 28)} {mean:>9,.1f} {median(values):>9,.1f} {most:>9,}  {when}"


def _local(moment: float) -> str:
    return f"{datetime.fromtimestamp(moment).astimezone():%Y-%m-%d %H:%M:%S}"


def snapshot_lines(recording: Recording, moment: float, columns: int = 110) -> Iterator[str]:
    """Yield the lines of the snapshot at a Unix time: its wait classes and stacks, most threads first."""
    index = recording.at(moment)
    snapshot = recording.snapshot(index)
    folded = FoldedSnapshot(snapshot, FoldedSnapshot(recording.snapshot(index - 1)) if index else None)
    widths = Widths.of(columns, map(label, snapshot.waits))
    yield headline(snapshot, columns)
    yield f"snapshot {index + 1:,} of {len(recording):,} · {trust(snapshot.tally)}"
    yield ""
    for name, count in snapshot.waits.items():
        yield f"{fit(clean(label(name)), 28)} {count:>9,}"
    yield ""
    yield stacks_head(widths, Order.THREADS.value)
    for row in folded.choose(Choice()):
        yield from (line.rstrip() for line in stack_lines(row, label(row.wait), widths))
