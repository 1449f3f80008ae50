"""What the journal tells: one entry a change, folded from its lines, each of them checked strictly."""

from __future__ import annotations

import json
import math
import secrets
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from innoscope.common import sanitize
from innoscope.toggles.model import Step

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from innoscope.target.model import Target
    from innoscope.toggles.model import Raw

VERSION: Final = 1
#: The toggle of an entry that is no change but a rescue (``innoscope unstick``).
RESCUE: Final = "unstick"
#: What a result line may say.
RESULTS: Final = ("done", "failed", "not written")
_TEXT_MOST: Final = 4096
_TEXT_KEPT: Final = 1000  # characters of a reason
_STEPS_MOST: Final = 64
_U64: Final = 1 << 64
_JSON: Final = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True, slots=True)
class ServerId:
    """Which process was changed. With ``boot_id``, ``pid`` and ``start_time`` name it for good."""

    pid: int
    start_time: int
    boot_id: str
    build_id: str | None
    flavour: str
    version: tuple[int, ...]
    socket: str | None

    @classmethod
    def of(cls, target: Target, boot_id: str) -> ServerId:
        """That of a server which was found."""
        return cls(
            target.pid, target.start_time, boot_id,
            target.build_id, target.flavour, target.version, target.socket,
        )  # fmt: skip

    @property
    def life(self) -> tuple[int, int, str]:
        """What names the process for good."""
        return self.pid, self.start_time, self.boot_id


@dataclass(frozen=True, slots=True)
class Entry:
    """One change, or one undo of a change (``undoes``). Times are Unix seconds.

    ``outcome`` is intended (no result was written: the tool was killed, or is at work), done, undone, failed
    or not written. ``put_back`` is true where a change that failed left nothing behind. ``notes`` are what
    went wrong while nobody looked, at the end of its time.
    """

    id: str
    at: float
    who: str
    why: str | None
    toggle: str
    value: str
    way: str
    server: ServerId
    steps: tuple[Step, ...]
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
        """Return whether it has nothing to set back: a rescue, or a call by an earlier version."""
        return all(step.old is None for step in self.steps)

    @property
    def may_be_in_force(self) -> bool:
        """Whether the server may be other than before because of it, as long as it lives."""
        if self.undoes is not None or self.action:
            return False
        return self.outcome in ("intended", "done") or (self.outcome == "failed" and not self.put_back)


class Damaged(ValueError):
    """A line that is none of ours; its text says what is wrong with it."""


def intent_line(entry: Entry) -> bytes:
    """The line that says what is about to be done."""
    return _line({
        "v": VERSION, "event": "intent", "id": entry.id, "at": entry.at, "who": entry.who,
        "why": None if entry.why is None else _clean(entry.why),
        "toggle": entry.toggle, "value": entry.value, "way": entry.way, "server": asdict(entry.server),
        "steps": [asdict(step) for step in entry.steps], "until": entry.until, "undoes": entry.undoes,
    })  # fmt: skip


def result_line(ident: str, at: float, outcome: str, reason: str | None, put_back: bool) -> bytes:
    """The line that says what came of it."""
    return _line({
        "v": VERSION, "event": "result", "id": ident, "at": at,
        "outcome": outcome, "reason": None if reason is None else _clean(reason), "put_back": put_back,
    })  # fmt: skip


def note_line(ident: str, at: float, text: str) -> bytes:
    """A line that says why something was not done yet."""
    return _line({"v": VERSION, "event": "note", "id": ident, "at": at, "text": _clean(text)})


#: Follows a line that was cut off, so that it is known to be one.
TORN_LINE: Final = _JSON.encode({"v": VERSION, "event": "torn"}).encode() + b"\n"


def _clean(text: str) -> str:
    """As the journal takes it: command lines and messages may hold bytes that are no text."""
    return text.encode(errors="replace").decode()[:_TEXT_KEPT]


def _line(record: Mapping[str, Any]) -> bytes:
    return _JSON.encode(record).encode() + b"\n"


def parse(line: bytes) -> dict[str, Any]:
    """A line as a record in which all is of its kind. Raises Damaged."""
    try:
        record = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"not JSON: {error}") from error
    if not isinstance(record, dict) or record.get("v") != VERSION:
        raise Damaged(f"not a record of version {VERSION}")
    event = record.get("event")
    shape = _SHAPES.get(event) if isinstance(event, str) else None
    if shape is None:
        raise Damaged(f"unknown event {event!r:.60}")
    _check(record, shape)
    if record["event"] == "intent":
        record["server"]["version"] = tuple(record["server"]["version"])
    return record


def _no_constant(name: str) -> None:
    raise Damaged(f"{name} is no number")


def _check(record: dict[str, Any], shape: Mapping[str, Any]) -> None:
    wrong = record.keys() ^ shape.keys()
    if wrong:
        raise Damaged(f"missing or unknown: {', '.join(map(repr, sorted(wrong)))[:100]}")
    for name, fits in shape.items():
        if not fits(record[name]):
            raise Damaged(f"{name} is not what it should be: {record[name]!r:.60}")


def _text(value: Any) -> bool:
    if not isinstance(value, str) or len(value) > _TEXT_MOST:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


def _word(value: Any) -> bool:
    return _text(value) and value != "" and value.isprintable()


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _U64


def _time(value: Any) -> bool:
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return plain and 0 <= value < 1e12


def _raw(value: Any) -> bool:
    if isinstance(value, bool):
        return True
    if isinstance(value, int):
        return abs(value) < _U64
    return _text(value) or (isinstance(value, float) and math.isfinite(value))


def _or_none(fits: Any) -> Any:
    return lambda value: value is None or fits(value)


def _server(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    _check(value, _SERVER)
    return True


def _steps(value: Any) -> bool:
    if not isinstance(value, list) or len(value) > _STEPS_MOST:
        return False
    for step in value:
        if not isinstance(step, dict):
            return False
        _check(step, _STEP)
    return True


def _version(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= 8 and all(map(_whole, value))


_SERVER: Final[Mapping[str, Any]] = {
    "pid": _whole, "start_time": _whole, "boot_id": _word, "build_id": _or_none(_word), "flavour": _word,
    "version": _version, "socket": _or_none(_text),
}  # fmt: skip
_STEP: Final[Mapping[str, Any]] = {
    "setting": _word, "old": _or_none(_raw), "new": _or_none(_raw), "address": _or_none(_whole),
    "size": _or_none(lambda value: _whole(value) and value in (1, 2, 4, 8)),
    "type": _or_none(lambda value: value in ("unsigned", "signed", "float")), "origin": _or_none(_text),
}  # fmt: skip
_EVERY: Final[Mapping[str, Any]] = {"v": _whole, "event": _word}
_NAMED: Final[Mapping[str, Any]] = {**_EVERY, "id": _word, "at": _time}
_SHAPES: Final[Mapping[str, Mapping[str, Any]]] = {
    "intent": {
        **_NAMED, "who": _word, "why": _or_none(_text), "toggle": _word, "value": _text, "way": _word,
        "server": _server, "steps": _steps, "until": _or_none(_time), "undoes": _or_none(_word),
    },
    "result": {
        **_NAMED, "outcome": lambda value: value in RESULTS, "reason": _or_none(_text),
        "put_back": lambda value: isinstance(value, bool),
    },
    "note": {**_NAMED, "text": _text},
    "torn": _EVERY,
}  # fmt: skip


class Fold:
    """Entries out of records, in the order of their intents."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All of them, the oldest first."""
        return tuple(self._entries.values())

    def add(self, record: Mapping[str, Any]) -> None:
        """One more record. Raises Damaged where it does not fit to those before it."""
        {"intent": self._intent, "result": self._result, "note": self._note, "torn": _nothing}[
            record["event"]
        ](record)

    def _intent(self, record: Mapping[str, Any]) -> None:
        if record["id"] in self._entries:
            raise Damaged(f"the change {record['id']} is begun twice")
        if record["undoes"] is not None:
            self._known(record["undoes"])
        self._entries[record["id"]] = Entry(
            id=record["id"], at=float(record["at"]), who=record["who"], why=record["why"],
            toggle=record["toggle"], value=record["value"], way=record["way"],
            server=ServerId(**record["server"]), steps=tuple(Step(**step) for step in record["steps"]),
            until=None if record["until"] is None else float(record["until"]), undoes=record["undoes"],
        )  # fmt: skip

    def _result(self, record: Mapping[str, Any]) -> None:
        entry = self._known(record["id"])
        if entry.outcome != "intended":
            raise Damaged(f"the change {entry.id} has a second result")
        ended = replace(
            entry,
            outcome=record["outcome"],
            ended_at=float(record["at"]),
            reason=record["reason"],
            put_back=record["put_back"],
        )
        self._entries[entry.id] = ended
        if ended.outcome == "done" and ended.undoes is not None:
            undone = self._entries[ended.undoes]
            self._entries[undone.id] = replace(undone, outcome="undone", undone_by=ended.id)

    def _note(self, record: Mapping[str, Any]) -> None:
        entry = self._known(record["id"])
        self._entries[entry.id] = replace(entry, notes=(*entry.notes, record["text"]))

    def _known(self, ident: str) -> Entry:
        if ident not in self._entries:
            raise Damaged(f"no change {ident} was begun before")
        return self._entries[ident]


def _nothing(_: Mapping[str, Any]) -> None:
    """A mark on the line before, which the reader has seen to."""


def inverse(step: Step, now: Raw) -> Step:
    """The write that sets a step's setting from ``now`` back to what it was."""
    return replace(step, old=now, new=step.old)


def fresh_id(entries: Iterable[Entry]) -> str:
    """A new entry's id: eight hexadecimal digits."""
    taken = {entry.id for entry in entries}
    while (ident := secrets.token_hex(4)) in taken:
        pass
    return ident


def printable(text: str) -> str:
    """A name as the journal takes it."""
    return sanitize.line(text, 200) or "unknown"
