"""Show an answer from the history as text or as a flame graph."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from innoscope import _native
from innoscope.cli.common import table
from innoscope.common import sanitize
from innoscope.sampling.classify import server_functions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from innoscope.sampling.sessions.report import Answer, ColumnValue, HistoryGroup, Question

_RIGHT: Final = frozenset(
    {"SECONDS", "SHARE", "SESSIONS", "CONNECTION", "BLOCKER", "TID", "CAUSE_CONNECTION"}
)
#: Maximum number of functions of a stack to show in a table, unless all are requested.
_FUNCTIONS: Final = 6
#: Number of digits of a digest to show. ``--where`` accepts shortened digests.
_DIGEST: Final = 12
#: Columns whose statement is shown, and the heading of the statement.
_STATEMENTS: Final = {"digest": "statement", "cause": "causing statement"}
_DAY_S: Final = 86_400.0


def lines(
    answer: Answer,
    groups: Sequence[HistoryGroup],
    question: Question,
    width: int | None,
    *,
    full: bool = False,
) -> Iterator[str]:
    """Yield the headline, the table and the notes.

    If ``full`` is false, stacks begin at the server's own innermost function and are shortened.
    """
    yield headline(answer, question)
    yield ""
    if not groups:
        yield "no busy threads" if not question.where else "no busy threads that match"
    else:
        yield from _table(answer, groups, width, full=full)
        if len(groups) < len(answer.groups):
            hidden = sum(group.seconds for group in answer.groups[len(groups) :])
            yield f"{len(answer.groups) - len(groups):,} more, {hidden:,.1f} s; --limit N shows more"
    for note in answer.notes:
        yield f"note: {note}"


def headline(answer: Answer, question: Question) -> str:
    """Return the time range, how much of it was observed, the database time and average active sessions."""
    pattern = "%H:%M:%S" if question.end - question.begin < _DAY_S else "%Y-%m-%d %H:%M"
    begin, end = (time.strftime(pattern, time.localtime(moment)) for moment in (question.begin, question.end))
    asked = question.end - question.begin
    observed = ", ".join(
        f"{sanitize.line(name)} observed {100 * seconds / asked:.0f} % of the time"
        for name, seconds in answer.observed.items()
    )
    what = "all threads" if question.all_threads else "database time"
    return (
        f"{begin} to {end} · {observed} · {what} {answer.seconds:,.1f} s · "
        f"{answer.sessions:.2f} average active sessions"
    )


def _table(answer: Answer, groups: Sequence[HistoryGroup], width: int | None, *, full: bool) -> Iterator[str]:
    explained = [name for name in _STATEMENTS if name in answer.by]
    names = [*answer.by, *(_STATEMENTS[name] for name in explained)]
    headings = ["SECONDS", "SHARE", "SESSIONS", *(name.upper() for name in names)]
    rows = []
    for group in groups:
        values = dict(zip(answer.by, group.values, strict=True))
        if values.get("stack") is not None:
            values["stack"] = f"{values['stack']} {_functions(answer, values, full=full)}".rstrip()
        cells = [
            f"{group.seconds:,.1f}",
            f"{100 * group.seconds / answer.seconds:.1f} %" if answer.seconds else "",
            f"{group.sessions:.2f}",
        ]
        cells += [_cell(name, value) for name, value in values.items()]
        cells += [answer.texts.get(str(values[name]), "") for name in explained]
        rows.append(cells)
    yield from table(headings, rows, right=_RIGHT, width=width)


def _cell(name: str, value: str | int | None) -> str:
    if value is None:
        return "-"
    if name in ("digest", "blocker_digest", "cause") and not str(value).startswith("("):
        return str(value)[:_DIGEST]
    return str(value)


def _functions(answer: Answer, values: Mapping[str, ColumnValue], *, full: bool) -> str:
    functions = tuple(answer.stacks.get(str(values["stack"]), ()))
    if not full:
        functions = server_functions(functions, str(values.get("wait") or ""))[:_FUNCTIONS]
    return " < ".join(functions)


def flame_graph(answer: Answer, question: Question) -> str:
    """Return a flame graph (SVG) of an answer by ``wait`` and ``stack``. Its counts are milliseconds."""
    at_wait, at_stack = answer.by.index("wait"), answer.by.index("stack")
    counts: dict[str, int] = {}
    for group in answer.groups:
        functions = answer.stacks.get(str(group.values[at_stack])) or ["[unknown stack]"]
        names = [sanitize.line(name).replace(";", ":") for name in reversed(functions)]
        path = ";".join([sanitize.line(str(group.values[at_wait] or "-")).replace(";", ":"), *names])
        counts[path] = counts.get(path, 0) + round(1_000 * group.seconds)
    return _native.flamegraph(
        [f"{path} {count}" for path, count in counts.items() if count],
        title="Busy threads by wait class and stack",
        subtitle=headline(answer, question),
        count_name="ms",
    )
