"""Define the journal's format: strictly validated lines, which are folded into one entry per change."""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from innoscope.common import sanitize, schema
from innoscope.common.errors import BadFile
from innoscope.toggles.model import ChangeStep

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from innoscope.target.model import Target
    from innoscope.toggles.model import Raw

VERSION: Final = 1
#: Name of the toggle in the entries of ``innoscope unstick``, which are not changes to a toggle.
RESCUE: Final = "unstick"
_TEXT_KEPT: Final = 1000  # maximum number of characters of a reason or note
_U64: Final = 1 << 64
_JSON: Final = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True, slots=True)
class ServerId:
    """The changed process. ``pid``, ``start_time`` and ``boot_id`` together identify it uniquely."""

    pid: int
    start_time: int
    boot_id: str
    build_id: str | None
    flavour: str
    version: tuple[int, ...]
    socket: str | None

    @classmethod
    def of(cls, target: Target, boot_id: str) -> ServerId:
        """Return the identity of a server."""
        return cls(
            target.pid, target.start_time, boot_id,
            target.build_id, target.flavour, target.version, target.socket,
        )  # fmt: skip

    @property
    def life(self) -> tuple[int, int, str]:
        """Return the pid, start time and boot id, which together are unique to the process."""
        return self.pid, self.start_time, self.boot_id


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One change, or one undo of a change (``undoes``). Times are Unix seconds.

    ``outcome`` is intended (without a result: the tool is still working, or was killed), done, undone, failed
    or "not written". ``put_back`` is true if the old values were restored after a failure. ``notes`` are
    errors of the automatic undo.
    """

    id: str
    at: float
    who: str
    why: str | None
    toggle: str
    value: str
    backend: str
    server: ServerId
    steps: tuple[ChangeStep, ...]
    until: float | None = None
    undoes: str | None = None
    outcome: str = "intended"
    ended_at: float | None = None
    reason: str | None = None
    put_back: bool = False
    undone_by: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def action(self) -> bool:
        """Return whether there are no old values to restore: ``unstick``, or an older Innoscope's action."""
        return all(step.old is None for step in self.steps)

    @property
    def may_be_in_force(self) -> bool:
        """Return whether the change may still be in force if the server process is still running."""
        if self.undoes is not None or self.action:
            return False
        return self.outcome in ("intended", "done") or (self.outcome == "failed" and not self.put_back)


class DamagedRecord(ValueError):
    """The error for an invalid line. Its message is the reason."""


def intent_line(entry: JournalEntry) -> bytes:
    """Return the line to write before a change or an undo."""
    return _line({
        "v": VERSION, "event": "intent", "id": entry.id, "at": entry.at, "who": entry.who,
        "why": None if entry.why is None else _clean(entry.why),
        "toggle": entry.toggle, "value": entry.value, "way": entry.backend, "server": asdict(entry.server),
        "steps": [asdict(step) for step in entry.steps], "until": entry.until, "undoes": entry.undoes,
    })  # fmt: skip


def result_line(ident: str, at: float, outcome: str, reason: str | None, put_back: bool) -> bytes:
    """Return the line with the result of a change or an undo."""
    return _line({
        "v": VERSION, "event": "result", "id": ident, "at": at,
        "outcome": outcome, "reason": None if reason is None else _clean(reason), "put_back": put_back,
    })  # fmt: skip


def note_line(ident: str, at: float, text: str) -> bytes:
    """Return a line with the reason why an automatic undo has not been completed yet."""
    return _line({"v": VERSION, "event": "note", "id": ident, "at": at, "text": _clean(text)})


#: Marker line that is written after a truncated line.
TORN_LINE: Final = _JSON.encode({"v": VERSION, "event": "torn"}).encode() + b"\n"


def _clean(text: str) -> str:
    """Return the message, which may contain invalid bytes, as valid UTF-8 of limited length."""
    return text.encode(errors="replace").decode()[:_TEXT_KEPT]


def _line(record: Mapping[str, Any]) -> bytes:
    return _JSON.encode(record).encode() + b"\n"


_Text: TypeAlias = Annotated[str, Meta(max_length=4096)]
_Whole: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_Time: TypeAlias = Annotated[float, Meta(ge=0, lt=1e12)]


class _Server(schema.Entry, frozen=True):
    pid: _Whole
    start_time: _Whole
    boot_id: _Text
    build_id: _Text | None
    flavour: _Text
    version: Annotated[tuple[_Whole, ...], Meta(max_length=8)]
    socket: _Text | None

    def __post_init__(self) -> None:
        _check_words(boot_id=self.boot_id, build_id=self.build_id, flavour=self.flavour)


class _Step(schema.Entry, frozen=True):
    setting: _Text
    old: bool | int | float | _Text | None
    new: bool | int | float | _Text | None
    address: Annotated[int, Meta(ge=0)] | None
    size: Literal[1, 2, 4, 8] | None
    type: Literal["unsigned", "signed", "float"] | None
    origin: _Text | None

    def __post_init__(self) -> None:
        _check_words(setting=self.setting)
        for value in (self.old, self.new, self.address):
            if isinstance(value, int) and abs(value) >= _U64:
                raise ValueError("a number does not fit into 64 bits")


class _Record(schema.Entry, frozen=True, tag_field="event"):
    v: Literal[1]  # VERSION


class Torn(_Record, frozen=True, tag="torn"):
    """Marks the previous line as truncated; the reader ignores that line."""


class _Named(_Record, frozen=True):
    id: _Text
    at: _Time

    def __post_init__(self) -> None:
        _check_words(id=self.id)


class Intent(_Named, frozen=True, tag="intent"):
    """An intended change or undo."""

    who: _Text
    why: _Text | None
    toggle: _Text
    value: _Text
    way: _Text
    server: _Server
    steps: Annotated[tuple[_Step, ...], Meta(max_length=64)]
    until: _Time | None
    undoes: _Text | None

    def __post_init__(self) -> None:
        _check_words(id=self.id, who=self.who, toggle=self.toggle, way=self.way, undoes=self.undoes)


class Result(_Named, frozen=True, tag="result"):
    """The outcome of a change or an undo."""

    outcome: Literal["done", "failed", "not written"]
    reason: _Text | None
    put_back: bool


class Note(_Named, frozen=True, tag="note"):
    """The reason why an automatic undo has not been completed yet."""

    text: _Text


Record: TypeAlias = Intent | Result | Note | Torn


def _check_words(**fields: str | None) -> None:
    """Raise ValueError if a field is empty or not printable."""
    for name, value in fields.items():
        if value is not None and not (value and value.isprintable()):
            raise ValueError(f"{name} is empty or not printable")


def parse(line: bytes) -> Record:
    """Parse one line. Raise DamagedRecord if it is malformed."""
    try:
        return schema.decode_json(line, Record, "record")  # type: ignore[arg-type]
    except BadFile as error:
        raise DamagedRecord(error.what) from error


class JournalReplay:
    """Builds entries from records, in the order of their intents."""

    def __init__(self) -> None:
        self._entries: dict[str, JournalEntry] = {}

    @property
    def entries(self) -> tuple[JournalEntry, ...]:
        """Return all entries, oldest first."""
        return tuple(self._entries.values())

    def add(self, record: Record) -> None:
        """Add a record. Raise DamagedRecord if it contradicts the records before it."""
        if isinstance(record, Intent):
            self._intend(record)
        elif isinstance(record, Result):
            self._conclude(record)
        elif isinstance(record, Note):
            entry = self._known(record.id)
            self._entries[entry.id] = replace(entry, notes=(*entry.notes, record.text))

    def _intend(self, record: Intent) -> None:
        if record.id in self._entries:
            raise DamagedRecord(f"duplicate change {record.id}")
        if record.undoes is not None:
            self._known(record.undoes)
        self._entries[record.id] = JournalEntry(
            id=record.id, at=record.at, who=record.who, why=record.why,
            toggle=record.toggle, value=record.value, backend=record.way,
            server=ServerId(**msgspec.structs.asdict(record.server)),
            steps=tuple(ChangeStep(**msgspec.structs.asdict(step)) for step in record.steps),
            until=record.until, undoes=record.undoes,
        )  # fmt: skip

    def _conclude(self, record: Result) -> None:
        entry = self._known(record.id)
        if entry.outcome != "intended":
            raise DamagedRecord(f"duplicate result of change {entry.id}")
        ended = replace(
            entry, outcome=record.outcome, ended_at=record.at, reason=record.reason, put_back=record.put_back
        )
        self._entries[entry.id] = ended
        if ended.outcome == "done" and ended.undoes is not None:
            undone = self._entries[ended.undoes]
            self._entries[undone.id] = replace(undone, outcome="undone", undone_by=ended.id)

    def _known(self, ident: str) -> JournalEntry:
        if ident not in self._entries:
            raise DamagedRecord(f"unknown change {ident}")
        return self._entries[ident]


def inverse(step: ChangeStep, now: Raw) -> ChangeStep:
    """Return a step that changes the setting from its current value ``now`` to the old value of ``step``."""
    return replace(step, old=now, new=step.old)


def fresh_id(entries: Iterable[JournalEntry]) -> str:
    """Return an id for a new entry: eight random hexadecimal digits that no other entry uses."""
    taken = {entry.id for entry in entries}
    while (ident := secrets.token_hex(4)) in taken:
        pass
    return ident


def printable(text: str) -> str:
    """Return a name of limited length without unprintable characters, as the journal requires."""
    return sanitize.line(text, 200) or "unknown"
