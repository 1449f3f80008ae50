"""Render the result of a trace as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from innoscope.probes.trace import latency
from innoscope.sampling.render import words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from innoscope.probes.trace.model import TraceResult, Values
    from innoscope.probes.trace.server_pace import Loss
    from innoscope.sampling.fold import StackReport
    from innoscope.target.model import Target

#: Maximum number of values listed individually.
_VALUES: Final = 20
_BAR: Final = 30
#: Values at or above this limit are shown in hexadecimal, because most of them are addresses.
_HEX: Final = 1 << 32


def lines(result: TraceResult, target: Target, limit: int | None = None) -> Iterator[str]:
    """Yield the whole report, with at most ``limit`` stacks."""
    yield headline(result)
    yield words.server(target)
    for note in notes(result):
        yield f"note: {note}"
    if result.latency is not None:
        yield from _latency(result)
    if result.values is not None:
        yield from _values(result.values)
    if result.report is not None:
        yield from _callers(result, result.report, limit)
    if result.loss is not None:
        yield from _loss(result, result.loss)


def headline(result: TraceResult) -> str:
    """Return the headline, such as ``buf_page_get: 12,034 calls in 10.0 s, 1,203 per second · cost …``."""
    share = result.spent / max(result.seconds, 1e-9) / result.cost.cpus
    return (
        f"{result.chosen.name}: {result.calls:,} calls in {result.seconds:.1f} s, "
        f"{result.rate:,.{_digits(result.rate)}f} per second · cost {share:.2%} of the server's "
        f"{result.cost.cpus:g} CPUs ({1e6 * result.cost.call_s:.1f} µs per call) · not stopped"
    )


def _digits(rate: float) -> int:
    return 0 if rate >= 10 else 2


def notes(result: TraceResult) -> Iterator[str]:
    """Yield notes on the limitations of the result."""
    if result.ended:
        yield result.ended
    yield from result.chosen.notes
    if not result.calls and not result.error:
        yield "no calls were seen: the function was not called, or its calls are inlined"
    yield from result.notes
    if result.stacks_held_back:
        yield (
            f"{result.stacks_held_back:,} stacks were skipped in bursts of calls: "
            "the next stack counts for them too"
        )
    if result.stacks_lost:
        yield f"{result.stacks_lost:,} stacks were lost: they arrived faster than they were read"


def _latency(result: TraceResult) -> Iterator[str]:
    histogram = result.latency
    assert histogram is not None  # noqa: S101
    yield ""
    if not histogram.count:
        yield "latency: no call returned"
        return
    quantiles = ", ".join(
        f"{label} {latency.duration(latency.quantile(histogram, fraction))}"
        for label, fraction in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
    )
    mean = latency.duration(histogram.total_ns / histogram.count)
    yield f"latency: mean {mean}, {quantiles} ({histogram.count:,} calls that returned)"
    rows = [
        (f"{latency.duration(2.0**octave)} to {latency.duration(2.0 ** (octave + 1))}", count)
        for octave, count in latency.filled_range(histogram.buckets)
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
        rows.append(("values that did not fit", values.others))
    yield from _bars(rows, of=total)
    shown = list(latency.filled_range(values.octaves))
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


def _callers(result: TraceResult, report: StackReport, limit: int | None) -> Iterator[str]:
    groups = report.fold.by_stack()
    shown = groups[:limit] if limit else groups
    yield ""
    if not groups:
        yield "callers: no stacks"
        return
    yield f"callers: {len(groups):,} different stacks in {_taken(result)}"
    yield f"{'calls':>10}  {'share':>6}  stack, innermost function first"
    for group in shown:
        share = 100 * group.count / max(report.shown, 1)
        marks = f"{group.marks} " if group.marks else ""
        stack = ",".join(words.labels(group)) or "[no frames]"
        yield f"{group.count:>10,}  {share:>5.1f}%  {marks}{stack}"
    if rest := groups[len(shown) :]:
        calls = sum(group.count for group in rest)
        yield f"… {len(rest):,} more ({calls:,} calls); omit --limit to show all"


def _taken(result: TraceResult) -> str:
    if result.stacks_taken >= result.calls:
        return f"{result.stacks_taken:,} calls"
    every = result.calls / max(result.stacks_taken, 1)
    return (
        f"{result.stacks_taken:,} of {result.calls:,} calls (one in {every:,.1f}, sampled evenly; "
        "call counts are estimates)"
    )


def _loss(result: TraceResult, loss: Loss) -> Iterator[str]:
    yield ""
    yield (
        f"cost: {result.hits:,} calls, {loss.spent:.2f} s of CPU in {loss.seconds:.1f} s: "
        f"{1e3 * loss.spent / max(loss.seconds, 1e-9):,.0f} ms/s, {loss.share:.1%} of the server's "
        f"{result.cost.cpus:g} CPUs"
    )
    for name, before in loss.before.items():
        if name not in loss.during:
            continue
        during = loss.during[name]
        change = f" ({100 * (during / before - 1):+.0f} %)" if before >= 1 else ""
        yield f"server throughput: {before:,.0f} {name} per second before, {during:,.0f} during{change}"
    if loss.why_no_sql:
        yield f"(no throughput from SQL: {loss.why_no_sql})"
