"""Render a latency profile as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from innoscope.common import sanitize
from innoscope.probes.latency.model import NO_STACK
from innoscope.probes.trace.latency import duration
from innoscope.sampling.classify import label
from innoscope.sampling.render import words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.probes.latency.model import LatencyResult
    from innoscope.probes.latency.shares import Breakdown, ClassShare
    from innoscope.target.model import Target

#: Number of wait classes and of digests in the tables.
_CLASSES: Final = 10
DIGESTS: Final = 10
#: Number of wait classes in a sentence, and the smallest share that it mentions.
_NAMED: Final = 3
_LEAST: Final = 0.05
#: The smallest share in the table of wait classes.
_LEAST_SHOWN: Final = 0.005
#: With fewer statements, p99 is the slowest one.
_ENOUGH: Final = 100
_MS: Final = 1e6
_DIGEST_CHARS: Final = 100


def lines(
    result: LatencyResult, target: Target, limit: int = DIGESTS, *, stacks: bool = False
) -> Iterator[str]:
    """Yield the whole report, with at most ``limit`` digests, and as many stacks of slow statements."""
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
        yield from _stacks(result, limit)


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
        what = "record was" if result.lost == 1 else "records were"
        yield f"{result.lost:,} {what} lost: the ring buffer was full"


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


def _stacks(result: LatencyResult, limit: int) -> Iterator[str]:
    yield "ms per slow statement  time  stack, innermost function first"
    for stack, spent in result.slow_stacks[:limit]:
        functions = sanitize.line(",".join(stack.functions)) or "-"
        yield f"{spent / _MS:21,.3f}  {_label(stack.wait)}  {functions}"
    if (hidden := len(result.slow_stacks) - limit) > 0:
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
