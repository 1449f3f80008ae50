"""Render text for reading and grep: a headline, then the stacks, wait classes, latches or threads."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from innoscope.sampling.classify import IDLE, default_classifier, label, server_frames
from innoscope.sampling.fold import THREADS, FoldedGroup, most_first
from innoscope.sampling.render import words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from innoscope.sampling.fold import Key, StackReport

#: Maximum number of statements shown below a stack.
QUERIES: Final = 3
#: Maximum number of stacks shown below a wait class.
STACKS: Final = 3
_QUERY_WIDTH: Final = 160


@dataclass(frozen=True, slots=True)
class Detail:
    """The parts of a report to show.

    If ``idle`` is false, the stacks of idle threads are hidden. If ``libraries`` is false, the innermost
    library and kernel functions of each stack are hidden.
    """

    idle: bool = True
    libraries: bool = True


EVERYTHING: Final = Detail()


def lines(
    report: StackReport, *, by: str = "stack", limit: int | None = None, detail: Detail = EVERYTHING
) -> Iterator[str]:
    """Yield a report grouped by stack, wait, latch or thread, with at most ``limit`` groups."""
    yield words.headline(report)
    yield words.server(report.target)
    if report.ended:
        yield f"note: {report.ended}"
    for note in report.notes:
        yield f"note: {note}"
    yield ""
    groups, hidden = report.fold.groups(by), Counter[str]()
    if not detail.idle:
        groups, hidden = _busy(groups)
    if not detail.libraries:
        groups = _from_server(groups, by)
    shown = groups[:limit] if limit else groups
    if shown or not hidden:
        groups_by = {"stack": _stacks, "wait": _waits, "latch": _latches, "thread": _threads}
        yield from groups_by[by](shown, report)
    if rest := groups[len(shown) :]:
        count = report.unit.show(sum(group.count for group in rest))
        yield f"… {len(rest):,} more ({count} {report.unit.title}); omit --limit to show all"
    if hidden:
        unit = "" if report.unit is THREADS else f" {report.unit.title}"
        counts = [f"{report.unit.show(count)}{unit} {label(wait)}" for wait, count in hidden.most_common()]
        yield f"{', '.join(counts)} hidden, --all shows them"


def _busy(groups: Iterable[FoldedGroup]) -> tuple[list[FoldedGroup], Counter[str]]:
    """Return the groups that were not always idle, and the counts of the others by idle class."""
    busy, hidden = [], Counter[str]()
    for group in groups:
        parts = group.parts or [group]
        if any(part.wait not in IDLE for part in parts):
            busy.append(group)
            continue
        for part in parts:
            hidden[part.wait] += part.count
    return busy, hidden


def _from_server(groups: list[FoldedGroup], by: str) -> list[FoldedGroup]:
    """Return the groups with stacks that start at the server's own innermost function.

    Groups by thread are not changed.
    """
    if by == "thread":
        return groups
    if by == "stack":
        return _merged(groups)
    return [replace(one, parts=_merged(one.parts)) for one in groups]


def _merged(stacks: Iterable[FoldedGroup]) -> list[FoldedGroup]:
    """Remove library functions that the wait class already explains, and merge stacks that are then equal."""
    merged: dict[Key, FoldedGroup] = {}
    for stack in stacks:
        frames = server_frames(stack.frames, stack.wait)
        key = (stack.wait, tuple(frame.label for frame in frames))
        merged.setdefault(key, FoldedGroup(stack.wait, frames)).absorb(stack)
    return most_first(merged.values())


def _stacks(groups: list[FoldedGroup], report: StackReport) -> Iterator[str]:
    width = max((len(group.wait) for group in groups), default=4)
    yield f"{_heading(report)}  {'wait':<{width}}  stack, innermost function first"
    for group in groups:
        yield f"{_count(group, report)}  {group.wait:<{width}}  {_stack(group, report)}"
        yield from _queries(group)


def _heading(report: StackReport) -> str:
    title = f"{report.unit.title:>{_width(report)}}"
    return title if report.unit is THREADS else f"{title}   share"


def _count(group: FoldedGroup, report: StackReport) -> str:
    """Return a group's count as a column, followed by its share if the unit is not threads."""
    if report.unit is THREADS:
        return f"{group.count:>{_width(report)}}"
    return f"{report.unit.show(group.count):>{_width(report)}}  {words.share(group.count, report):>6}"


def _width(report: StackReport) -> int:
    return max(7, 0 if report.unit is THREADS else len(report.unit.show(report.threads)))


def _stack(group: FoldedGroup, report: StackReport) -> str:
    marks = words.marks(group, report.unit)
    return (f"{marks} " if marks else "") + (",".join(words.labels(group)) or "[no frames]")


def _queries(group: FoldedGroup, indent: str = " " * 9) -> Iterator[str]:
    most = group.queries.most_common(QUERIES)
    for text, count in most:
        yield f"{indent}# {count}× {_short(text)}"
    if len(group.queries) > len(most):
        yield f"{indent}# … {len(group.queries) - len(most):,} more statements"


def _short(text: str) -> str:
    text = words.clean(text)
    return text if len(text) <= _QUERY_WIDTH else text[: _QUERY_WIDTH - 1] + "…"


def _waits(groups: list[FoldedGroup], report: StackReport) -> Iterator[str]:
    classes = default_classifier().catalog.classes
    width = max((len(group.wait) for group in groups), default=4)
    room, show = _width(report), report.unit.show if report.unit is not THREADS else str
    yield f"{report.unit.title:>{room}}  {'share':>6}  {'wait':<{width}}  what it is"
    for group in groups:
        known = classes.get(group.wait)
        share = 100 * group.count / max(report.shown, 1)
        marks = f"  {text}" if (text := words.marks(group, report.unit)) else ""
        about = f"{known.label}: {known.about}" if known else ""
        yield f"{show(group.count):>{room}}  {share:>5.1f}%  {group.wait:<{width}}  {about}{marks}"
        yield from _top_stacks(group, report, f"--wait {group.wait}")


def _latches(groups: list[FoldedGroup], report: StackReport) -> Iterator[str]:
    if not groups:
        yield "no thread waits for a latch"
        return
    room, show = _width(report), report.unit.show if report.unit is not THREADS else str
    yield f"{report.unit.title:>{room}}  {'share':>6}  latch"
    for group in groups:
        share = 100 * group.count / max(report.shown, 1)
        marks = f"  {text}" if (text := words.marks(group, report.unit)) else ""
        yield f"{show(group.count):>{room}}  {share:>5.1f}%  {group.latch}{marks}"
        yield from _top_stacks(group, report, "--wait mutex_wait --wait spin")


def _top_stacks(group: FoldedGroup, report: StackReport, more: str) -> Iterator[str]:
    """Yield a group's most frequent stacks and statements. ``more`` names options that show all stacks."""
    room, show = _width(report), report.unit.show if report.unit is not THREADS else str
    for part in group.parts[:STACKS]:
        yield f"{show(part.count):>{room + 8}}  {_stack(part, report)}"
    if len(group.parts) > STACKS:
        yield f"{'':>{room + 8}}  … {len(group.parts) - STACKS:,} more stacks: {more}"
    yield from _queries(group, " " * (room + 10))


def _threads(groups: list[FoldedGroup], report: StackReport) -> Iterator[str]:
    for group in groups:
        yield from _about(group, report)
        for part in group.parts:
            if len(group.parts) > 1:
                marks = words.marks(part, report.unit)
                yield f"  {_part_of(part, group, report)}: {part.wait} {marks}".rstrip()
            for number, frame in enumerate(part.frames):
                inlined = "  (inlined)" if frame.inlined else ""
                module = f"  {frame.module}" if frame.function else ""
                yield f"  #{number:<3} {frame.label}{inlined}{module}"
        yield ""


def _part_of(part: FoldedGroup, group: FoldedGroup, report: StackReport) -> str:
    unit = report.unit
    name = "snapshots" if unit is THREADS else unit.title
    return f"{unit.show(part.count)} of {unit.show(group.count)} {name}"


def _about(group: FoldedGroup, report: StackReport) -> Iterator[str]:
    thread = group.thread
    assert thread is not None  # noqa: S101
    ns_tid = f" (inside: {thread.ns_tid})" if thread.ns_tid != thread.tid else ""
    name = words.clean(thread.comm)
    head = f"thread {thread.tid}{ns_tid}  {name}  {thread.state}  {thread.trust}  {thread.wait}"
    marks = words.marks(group, report.unit)
    head += f" {marks}" if marks else ""
    yield head
    query = thread.query
    if query is None:
        return
    user = f"{query.user or '?'}@{query.host or '?'}" if query.trust is None else query.user
    state = " · ".join(str(part) for part in (query.command, query.state, query.trust) if part)
    parts = [
        f"connection {query.connection_id}",
        user,
        query.db,
        state,
        f"{query.seconds} s" if query.seconds is not None else None,
    ]
    yield "  " + "  ".join(words.clean(part) for part in parts if part)
    if query.text:
        yield f"  {words.clean(query.text)}"
    elif query.digest_text:
        yield f"  {_short(query.digest_text)}"
