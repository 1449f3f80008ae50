"""Render a latency profile as text."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Final

from innoscope.common import sanitize
from innoscope.probes.latency.model import NO_STACK
from innoscope.probes.trace.latency import duration
from innoscope.sampling.classify import label, server_functions
from innoscope.sampling.render import words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.probes.latency.model import LatencyResult
    from innoscope.probes.latency.shares import Breakdown, ClassShare
    from innoscope.target.model import Target

#: Maximum number of wait classes in the table.
_CLASSES: Final = 10
#: Default maximum number of digests in the table.
DIGESTS: Final = 10
#: Maximum number of wait classes in a sentence.
_NAMED: Final = 3
#: The smallest share that a sentence mentions.
_LEAST: Final = 0.05
#: A wait class is listed if at least one of its shares is this large.
_LEAST_SHOWN: Final = 0.005
#: Minimum number of statements for a p99. With fewer, p99 is the slowest statement.
_ENOUGH: Final = 100
_MS: Final = 1e6
_DIGEST_CHARS: Final = 100


def lines(
    result: LatencyResult, target: Target, limit: int = DIGESTS, *, stacks: bool = False, full: bool = False
) -> Iterator[str]:
    """Yield the whole report, with at most ``limit`` digests and ``limit`` stacks of slow statements.

    If ``full`` is false, stacks begin at the server's own innermost function.
    """
    yield headline(result)
    yield words.server(target)
    for note in notes(result):
        yield f"note: {note}"
    if result.overall is None:
        return
    yield sentence(result.overall)
    yield ""
    yield from _classes(result.overall)
    yield ""
    yield from _digests(result, limit)
    if stacks:
        yield ""
        yield from _stacks(result, limit, full=full)


def headline(result: LatencyResult) -> str:
    """Return the headline, such as ``2,300 of 23,012 statements in 10.0 s: p50 1.20 ms, …, max 120 ms``."""
    count = len(result.statements)
    parts = [f"{count:,} of {result.total:,} statements in {result.seconds:.1f} s"]
    if (found := result.overall) is not None:
        parts[0] += (
            f": p50 {duration(found.p50)}, p95 {duration(found.p95)}, p99 {duration(found.p99)}, "
            f"max {duration(found.maximum)}"
        )
    cost = result.cost
    share = result.spent / max(result.probed_s, 1e-9) / cost.cpus
    parts.append(
        f"cost {share:.2%} of the server's {cost.cpus:g} CPUs ({1e6 * cost.call_s:.1f} µs per statement, "
        f"{1e6 * cost.stack_s:.1f} µs per stack)"
    )
    return " · ".join((*parts, "not stopped"))


def notes(result: LatencyResult) -> Iterator[str]:
    """Yield notes on the limitations of the result."""
    if result.ended:
        yield result.ended
    yield from result.notes
    count = len(result.statements)
    if not count:
        yield "no sampled statement ended: the server executes none, or use a longer duration"
    elif count < _ENOUGH:
        yield f"with fewer than {_ENOUGH} statements, p99 is the slowest one: use a longer duration"
    if result.unfinished:
        one = result.unfinished == 1
        yield (
            f"{result.unfinished:,} sampled {'statement' if one else 'statements'} had not ended, and "
            f"{'is' if one else 'are'} not included"
        )
    if result.lost:
        yield words.lost_records(result.lost)


def sentence(found: Breakdown) -> str:
    """Return the explanation of p99, such as ``…: 93 % of that is redo fsync``."""
    beginning = f"p99 is {duration(found.p99)}"
    if found.excess <= 0:
        return f"{beginning}, and all statements took equally long"
    named = [share for share in found.shares if share.excess is not None and share.excess >= _LEAST]
    causes = ", ".join(f"{_percent(share.excess)} % of that is {_label(share.wait)}" for share in named[:1])
    causes += "".join(f", {_percent(share.excess)} % {_label(share.wait)}" for share in named[1:_NAMED])
    excess = duration(found.excess)
    return (
        f"{beginning}; statements that slow take {excess} more than the mean: {causes or 'many small shares'}"
    )


def _classes(found: Breakdown) -> Iterator[str]:
    yield "mean ms  share of mean  of variance  of p99 excess  time"
    shown = [share for share in found.shares if _is_visible(share)][:_CLASSES]
    for share in shown:
        yield (
            f"{share.mean * found.mean / _MS:7,.3f}  {_percent(share.mean):>11} %  "
            f"{_percent(share.variance):>9} %  {_percent(share.excess):>11} %  {_label(share.wait)}"
        )
    if hidden := len(found.shares) - len(shown):
        yield f"… {hidden} more wait {'class' if hidden == 1 else 'classes'}"


def _is_visible(share: ClassShare) -> bool:
    """Return whether one of the shares is at least 0.5 %."""
    return any(abs(part or 0.0) >= _LEAST_SHOWN for part in (share.mean, share.variance, share.excess))


def _digests(result: LatencyResult, limit: int) -> Iterator[str]:
    yield "slowest   count   p50 ms   p95 ms   p99 ms   max ms  why p99 is slow, digest"
    for one in result.digests[:limit]:
        found = one.breakdown
        times = "  ".join(
            f"{value / _MS:7,.2f}" for value in (found.p50, found.p95, found.p99, found.maximum)
        )
        text = sanitize.line(result.texts.get(one.digest, one.digest))
        yield f"{one.slowest:7,}  {found.count:6,}  {times}  {_why(found.shares)}"
        yield f"         # {text[:_DIGEST_CHARS]}{'…' if len(text) > _DIGEST_CHARS else ''}"
    if (hidden := len(result.digests) - limit) > 0:
        yield f"… {hidden:,} more {'digest' if hidden == 1 else 'digests'}"


def _stacks(result: LatencyResult, limit: int, *, full: bool) -> Iterator[str]:
    merged: dict[tuple[str, str], float] = {}
    for stack, spent in result.slow_stacks:
        functions = stack.functions if full else server_functions(stack.functions, stack.wait)
        key = stack.wait, sanitize.line(",".join(functions)) or "-"
        merged[key] = merged.get(key, 0.0) + spent
    yield "ms per slow statement  time  stack, innermost function first"
    for (wait, text), spent in sorted(merged.items(), key=itemgetter(1), reverse=True)[:limit]:
        yield f"{spent / _MS:21,.3f}  {_label(wait)}  {text}"
    if (hidden := len(merged) - limit) > 0:
        yield f"… {hidden:,} more {'stack' if hidden == 1 else 'stacks'}"


def _why(shares: tuple[ClassShare, ...]) -> str:
    """Return the classes with the largest shares of the p99 excess, or of the mean if there is no excess."""
    by_excess = any(share.excess is not None for share in shares)
    ranked = [(share.excess if by_excess else share.mean, share.wait) for share in shares]
    named = [f"{_percent(share)} % {_label(wait)}" for share, wait in ranked if share and share >= _LEAST]
    return ", ".join(named[:_NAMED]) or "many small shares"


def _label(wait: str) -> str:
    return "off the CPU, stack not taken" if wait == NO_STACK else label(wait)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f}".replace("-0", "0")
