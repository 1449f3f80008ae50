"""Query the history for the database time, grouped by any columns."""

from __future__ import annotations

import resource
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from innoscope import _native
from innoscope.common.errors import BadFile, InnoscopeError, NoRights
from innoscope.sampling.sessions import files
from innoscope.sampling.sessions.files import HOUR_S
from innoscope.sampling.snapshot_history import CLIENT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from innoscope.sampling.sessions.files import HistoryPart

#: Value of a column; None means unknown. The value of ``stack`` is its hash in hexadecimal.
ColumnValue: TypeAlias = str | int | None

#: Columns of ``samples``, by their names in options and in output.
COLUMNS: Final = {
    name: name
    for name in (
        "wait", "digest", "user", "schema", "command", "object", "stack", "kind", "connection", "server",
        "tid", "blocker_digest", "statement_trust", "stack_trust", "cause", "cause_connection", "cause_state",
    )
} | {"blocker": "blocker_connection"}  # fmt: skip
#: Columns whose values may be abbreviated to their first characters.
_ABBREVIATED: Final = frozenset({"digest", "blocker_digest", "cause"})
_INTEGERS: Final = frozenset({"connection", "blocker", "tid", "cause_connection"})
#: Columns that are computed from all samples of a snapshot (agent/native/src/history/causes.rs).
_COMPUTED: Final = frozenset({"cause", "cause_connection", "cause_state"})
#: The computation also needs the samples of this many seconds before the time range.
_LOOK_BACK_S: Final = 3_600.0
#: Maximum number of groups. The time of all others is added up in ``Answer.rest``.
MAX_GROUPS: Final = 100_000
#: Maximum address space in bytes while files are read. A page of a forged file can claim a size of 2 GB.
MAX_BYTES: Final = 2 << 30
_US: Final = 1_000_000
_HEX: Final = 16
_WORD: Final = 1 << 64


class BadCondition(InnoscopeError):
    """A malformed condition, or one on an unknown column."""


class ColumnCondition(NamedTuple):
    """The values of a column to include; None stands for unknown values."""

    column: str
    values: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """A query: group the samples from ``begin`` to ``end`` (Unix times) that meet all conditions.

    Only client threads are included, unless ``all_threads`` is true or there is a condition on ``kind``.
    """

    begin: float
    end: float
    by: tuple[str, ...]
    where: tuple[ColumnCondition, ...] = ()
    all_threads: bool = False


@dataclass(frozen=True, slots=True)
class HistoryGroup:
    """A group's values in the order of ``Answer.by``, its seconds, samples and average active sessions."""

    values: tuple[ColumnValue, ...]
    seconds: float
    samples: int
    sessions: float


@dataclass(slots=True)
class Answer:
    """The groups, largest first. ``observed`` maps each server to its observed time in seconds.

    ``seconds`` and ``sessions`` are totals. ``rest`` is the total of the groups beyond MAX_GROUPS, in
    seconds. ``texts`` contains the text of each digest, and ``stacks`` the functions of each stack that
    ``SessionHistory.explain`` has looked up.
    """

    by: tuple[str, ...]
    observed: dict[str, float]
    seconds: float = 0.0
    sessions: float = 0.0
    rest: float = 0.0
    groups: list[HistoryGroup] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    stacks: dict[str, list[str]] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)


class SessionHistory:
    """The history in a directory.

    Raise NoRights if we are not allowed to read the directory, or BadFile if it is unreadable or contains no
    history.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            self.parts = files.live_parts(folder)
        except PermissionError as error:
            raise NoRights(
                f"cannot read the history in {folder}: permission denied", remedy="sudo innoscope history …"
            ) from error
        except OSError as error:
            raise BadFile(f"cannot read the history in {folder}: {error.strerror}", remedy=_NONE) from error
        if not self.parts:
            raise BadFile(f"there is no history in {folder}", remedy=_NONE)

    @property
    def span(self) -> tuple[float, float]:
        """Return the Unix times of the first hour's start and of the last hour's end."""
        hours = [part.hour for part in self.parts]
        return float(min(hours) * HOUR_S), float((max(hours) + 1) * HOUR_S)

    def files(self, table: str, begin: float, end: float) -> list[Path]:
        """Return the paths of a table's files for all hours that overlap the given time range."""
        parts: list[HistoryPart] = [
            part for part in self.parts if part.hour * HOUR_S < end and (part.hour + 1) * HOUR_S > begin
        ]
        return [path for part in parts if (path := part.file(table)).exists()]

    def ask(self, question: Question) -> Answer:
        """Group the samples. If several servers were observed, group by ``server`` too."""
        observed, failed = self._observed(question)
        by = question.by
        if len(observed) > 1 and "server" not in by:
            by = ("server", *by)
        answer = Answer(by, observed, notes=failed)
        inner = by if "server" in by else ("server", *by)
        begin = question.begin - (_LOOK_BACK_S if _is_computed(question) else 0)
        groups, rest, _, broken = _native.history_group(
            "samples",
            self.files("samples", begin, question.end),
            span=_span(question),
            by=[COLUMNS[name] for name in inner],
            filters=_filters(question),
            most_groups=MAX_GROUPS,
        )
        answer.notes |= _notes(broken)
        at_server = inner.index("server")
        for values, seconds, samples in groups:
            server = str(values[at_server])
            sessions = seconds / observed[server] if observed.get(server) else 0.0
            shown = values if inner is by else values[1:]
            answer.groups.append(HistoryGroup(_shown(by, shown), seconds, samples, sessions))
            answer.seconds += seconds
            answer.sessions += sessions
        answer.rest = rest[0]
        answer.seconds += rest[0]
        if rest[1]:
            answer.notes[f"only {MAX_GROUPS:,} groups are shown; the others took {rest[0]:,.0f} s"] = None
        return answer

    def explain(self, answer: Answer, question: Question, groups: Sequence[HistoryGroup]) -> None:
        """Look up the digests and stacks of some groups, and add them to the answer."""
        digests = {
            digest
            for name in ("digest", "blocker_digest", "cause")
            for digest in _column(answer, groups, name)
            if not digest.startswith("(")
        }
        stacks = _column(answer, groups, "stack")
        if digests:
            begin = question.begin - (_LOOK_BACK_S if "cause" in answer.by else 0)
            found, broken = _native.history_digests(
                self.files("digests", begin, question.end), sorted(digests)
            )
            answer.texts |= found
            answer.notes |= _notes(broken)
        if stacks:
            wanted = {_stack_number(stack): stack for stack in stacks}
            names, broken = _native.history_stacks(
                self.files("stacks", question.begin, question.end), list(wanted)
            )
            answer.stacks |= {wanted[number]: functions for number, functions in names.items()}
            answer.notes |= _notes(broken)

    def _observed(self, question: Question) -> tuple[dict[str, float], dict[str, None]]:
        """Return the observed time in seconds, by server, and notes on damaged files."""
        groups, _, _, broken = _native.history_group(
            "snapshots",
            self.files("snapshots", question.begin, question.end),
            span=_span(question),
            by=["server"],
            filters=[one for one in _filters(question) if one[0] == "server"],
            most_groups=MAX_GROUPS,
        )
        return {str(key[0]): seconds for key, seconds, _ in groups}, _notes(broken)


_NONE: Final = "the agent writes it ([history] in agent.toml); for copied files: innoscope history --dir DIR"


@contextmanager
def limited_memory() -> Iterator[None]:
    """Limit this process's address space while it reads files, which may be forged.

    If the limit is exceeded, the process aborts.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES if hard < 0 else min(MAX_BYTES, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def condition(text: str) -> ColumnCondition:
    """Parse ``COLUMN=VALUE[,VALUE…]``, where ``-`` stands for an unknown value.

    Raise BadCondition if the text is malformed or the column is unknown.
    """
    column, found, values = text.partition("=")
    if not found or column not in COLUMNS:
        raise BadCondition(f"{text!r} is not a condition", remedy=f"COLUMN=VALUE with {', '.join(COLUMNS)}")
    return ColumnCondition(column, tuple(_parsed(column, value) for value in values.split(",")))


def _parsed(column: str, value: str) -> str | None:
    if value == "-":
        return None
    if column == "stack":
        try:
            return str(_stack_number(value))
        except ValueError:
            raise BadCondition(f"{value!r} is not a stack: it has 16 hexadecimal digits") from None
    if column in _INTEGERS and not value.isdecimal():
        raise BadCondition(f"{value!r} is not a number")
    return value


def _is_computed(question: Question) -> bool:
    return not _COMPUTED.isdisjoint((*question.by, *(one.column for one in question.where)))


def _filters(question: Question) -> list[tuple[str, list[str | None], bool]]:
    filters = [(COLUMNS[one.column], list(one.values), one.column in _ABBREVIATED) for one in question.where]
    if not question.all_threads and not any(one.column == "kind" for one in question.where):
        filters.append(("kind", [CLIENT], False))
    return filters


def _span(question: Question) -> tuple[int, int]:
    return int(question.begin * _US), int(question.end * _US)


def _shown(by: Sequence[str], values: Sequence[ColumnValue]) -> tuple[ColumnValue, ...]:
    return tuple(
        f"{value % _WORD:0{_HEX}x}" if name == "stack" and isinstance(value, int) else value
        for name, value in zip(by, values, strict=True)
    )


def _stack_number(stack: str) -> int:
    """Convert a stack's hexadecimal hash to the signed number in the files.

    Raise ValueError unless it has 16 digits.
    """
    number = int(stack, 16)
    if len(stack) != _HEX or number < 0:
        raise ValueError(stack)
    return number - _WORD if number >= _WORD // 2 else number


def _column(answer: Answer, groups: Sequence[HistoryGroup], name: str) -> set[str]:
    if name not in answer.by:
        return set()
    at = answer.by.index(name)
    return {value for group in groups if isinstance(value := group.values[at], str)}


def _notes(broken: Sequence[tuple[Path, str]]) -> dict[str, None]:
    return dict.fromkeys(f"cannot read {path}: {why}" for path, why in broken)


def document(answer: Answer, groups: Sequence[HistoryGroup], question: Question) -> Mapping[str, object]:
    """Return the JSON document (docs/json.md)."""
    at_digest = answer.by.index("digest") if "digest" in answer.by else None
    at_cause = answer.by.index("cause") if "cause" in answer.by else None
    at_stack = answer.by.index("stack") if "stack" in answer.by else None
    rows = []
    for group in groups:
        row: dict[str, object] = dict(zip(answer.by, group.values, strict=True))
        if at_digest is not None:
            row["text"] = answer.texts.get(str(group.values[at_digest]))
        if at_cause is not None:
            row["cause_text"] = answer.texts.get(str(group.values[at_cause]))
        if at_stack is not None:
            row["functions"] = answer.stacks.get(str(group.values[at_stack]))
        row["seconds"] = round(group.seconds, 3)
        row["samples"] = group.samples
        row["average_active_sessions"] = round(group.sessions, 4)
        rows.append(row)
    return {
        "schema": 1,
        "from": round(question.begin, 6),
        "to": round(question.end, 6),
        "observed_seconds": {name: round(seconds, 3) for name, seconds in answer.observed.items()},
        "database_seconds": round(answer.seconds, 3),
        "average_active_sessions": round(answer.sessions, 4),
        "by": list(answer.by),
        "groups": rows,
        "rest_seconds": round(answer.rest, 3),
        "notes": list(answer.notes),
    }
