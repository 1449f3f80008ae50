"""What was seen, for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from innoscope.probes.trace import latency
from innoscope.sampling.render import words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from innoscope.probes.trace.model import Seen, Values
    from innoscope.probes.trace.server_pace import Loss
    from innoscope.sampling.fold import Report
    from innoscope.target.model import Target

#: Values listed by themselves.
_VALUES: Final = 20
_BAR: Final = 30
#: From here on a number is an address, or reads better as one.
_HEX: Final = 1 << 32


def lines(seen: Seen, target: Target, limit: int | None = None) -> Iterator[str]:
    """The whole report; at most ``limit`` stacks."""
    yield headline(seen)
    yield words.server(target)
    for note in notes(seen):
        yield f"note: {note}"
    if seen.latency is not None:
        yield from _latency(seen)
    if seen.values is not None:
        yield from _values(seen.values)
    if seen.report is not None:
        yield from _callers(seen, seen.report, limit)
    if seen.loss is not None:
        yield from _loss(seen, seen.loss)


def headline(seen: Seen) -> str:
    """``buf_page_get: 12,034 calls in 10.0 s, 1,203 a second · cost …``."""
    share = seen.spent / max(seen.seconds, 1e-9) / seen.cost.cpus
    return (
        f"{seen.chosen.name}: {seen.calls:,} calls in {seen.seconds:.1f} s, "
        f"{seen.rate:,.{_digits(seen.rate)}f} a second · cost {share:.2%} of the server's "
        f"{seen.cost.cpus:g} CPUs ({1e6 * seen.cost.call_s:.1f} µs a call) · not stopped"
    )


def _digits(rate: float) -> int:
    return 0 if rate >= 10 else 2


def notes(seen: Seen) -> Iterator[str]:
    """What a reader has to know of the numbers."""
    if seen.ended:
        yield seen.ended
    yield from seen.chosen.notes
    if not seen.calls and not seen.error:
        yield "no call was seen: nobody called it meanwhile, or the calls that there were are inlined"
    yield from seen.notes
    if seen.stacks_held_back:
        yield (
            f"{seen.stacks_held_back:,} stacks were left out in bursts of calls: "
            "the next one stands for them too"
        )
    if seen.stacks_lost:
        yield f"{seen.stacks_lost:,} stacks were lost: they came faster than they were read"


def _latency(seen: Seen) -> Iterator[str]:
    histogram = seen.latency
    assert histogram is not None  # noqa: S101
    yield ""
    if not histogram.count:
        yield "how long calls take: none ended meanwhile"
        return
    quantiles = ", ".join(
        f"{label} {latency.duration(latency.quantile(histogram, part))}"
        for label, part in (("half within", 0.5), ("90 % within", 0.9), ("99 % within", 0.99))
    )
    mean = latency.duration(histogram.total_ns / histogram.count)
    yield f"how long calls take: mean {mean}, {quantiles} ({histogram.count:,} calls that ended)"
    rows = [
        (f"{latency.duration(2.0**octave)} to {latency.duration(2.0 ** (octave + 1))}", count)
        for octave, count in latency.range_of(histogram.buckets)
    ]
    yield from _bars(rows)


def _values(values: Values) -> Iterator[str]:
    total = sum(values.octaves)
    yield ""
    yield f"argument {values.argument}: {len(values.counts):,} different values in {total:,} calls"
    most = sorted(values.counts.items(), key=lambda item: (-item[1], item[0]))
    rows = [(_number(value), count) for value, count in most[:_VALUES]]
    rest = sum(count for _, count in most[_VALUES:])
    if rest:
        rows.append((f"{len(most) - _VALUES:,} other values", rest))
    if values.others:
        rows.append(("values that found no room", values.others))
    yield from _bars(rows, of=total)
    shown = list(latency.range_of(values.octaves))
    if len(most) > 1 and shown:
        yield ""
        yield f"argument {values.argument}, by powers of two:"
        yield from _bars([(_octave(octave), count) for octave, count in shown], of=total)


def _number(value: int) -> str:
    return f"{value:#x}" if value >= _HEX else f"{value:,}"


def _octave(octave: int) -> str:
    if octave <= 1:
        return str(octave)
    return f"{_number(1 << (octave - 1))} to {_number((1 << octave) - 1)}"


def _bars(rows: Sequence[tuple[str, int]], of: int | None = None) -> Iterable[str]:
    total = of or sum(count for _, count in rows)
    most = max((count for _, count in rows), default=1) or 1
    width = max((len(text) for text, _ in rows), default=0)
    for text, count in rows:
        bar = "█" * round(_BAR * count / most) or ("▏" if count else "")
        yield f"{count:>10,}  {100 * count / max(total, 1):>5.1f}%  {text:>{width}}  {bar}".rstrip()


def _callers(seen: Seen, report: Report, limit: int | None) -> Iterator[str]:
    groups = report.fold.by_stack()
    shown = groups[:limit] if limit else groups
    yield ""
    if not groups:
        yield "who calls it: no stack was taken"
        return
    yield f"who calls it: {len(groups):,} different stacks in {_taken(seen)}"
    yield f"{'calls':>10}  {'share':>6}  stack, innermost function first"
    for group in shown:
        share = 100 * group.count / max(report.shown, 1)
        marks = f"{group.marks} " if group.marks else ""
        stack = ",".join(words.labels(group)) or "[no frames]"
        yield f"{group.count:>10,}  {share:>5.1f}%  {marks}{stack}"
    if rest := groups[len(shown) :]:
        calls = sum(group.count for group in rest)
        yield f"… {len(rest):,} more ({calls:,} calls); without --limit they are shown"


def _taken(seen: Seen) -> str:
    if seen.stacks_taken >= seen.calls:
        return f"{seen.stacks_taken:,} calls"
    every = seen.calls / max(seen.stacks_taken, 1)
    return (
        f"{seen.stacks_taken:,} of {seen.calls:,} calls (one of {every:,.1f}, drawn evenly; "
        "calls are reckoned from them)"
    )


def _loss(seen: Seen, loss: Loss) -> Iterator[str]:
    yield ""
    yield (
        f"what it cost: {seen.hits:,} calls, {loss.spent:.2f} s of CPU in {loss.seconds:.1f} s: "
        f"{1e3 * loss.spent / max(loss.seconds, 1e-9):,.0f} ms/s, {loss.share:.1%} of the server's "
        f"{seen.cost.cpus:g} CPUs"
    )
    for name, before in loss.before.items():
        if name not in loss.during:
            continue
        during = loss.during[name]
        change = f" ({100 * (during / before - 1):+.0f} %)" if before >= 1 else ""
        yield f"the server's own pace: {before:,.0f} {name} a second before, {during:,.0f} meanwhile{change}"
    if loss.why_no_sql:
        yield f"(the server was not asked itself: {loss.why_no_sql})"
