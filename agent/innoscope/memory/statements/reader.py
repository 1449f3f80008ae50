"""Read the commands that connections execute, from the server's memory.

Everything that is read is untrusted: the number of connections and the length of each text are limited.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from innoscope.memory.locks import sessions
from innoscope.memory.thread_descriptor import descriptor

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from innoscope.memory.locks.layout import Part, ProcessMemory

#: Maximum connections whose statements are read, and maximum bytes of a text and of a name.
MOST_STATEMENTS: Final = 1_000
MOST_BYTES: Final = 4_096
_NAME_BYTES: Final = 400
#: Commands without a statement: COM_SLEEP, which waits for the next command, and COM_DAEMON.
_WITHOUT: Final = frozenset({0, 29})
_HANDLE_BYTES: Final = 8
#: Members of a THD that identify its command, in the order of the fields of Command.
_FIELDS: Final = ("connection", "command", "query", "text", "length")
_PAGE: Final = 4_096
#: Maximum distance in bytes from the start of a THD to a Security_context that is stored in the THD itself.
_THD_BYTES: Final = 1 << 15


@dataclass(frozen=True, slots=True)
class Command:
    """A command that a connection executes. If it is equal at two times, it is the same command."""

    thd: int
    connection: int
    number: int
    query: int
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Statement:
    """A command, the first bytes of its text, and the names of the connection's user and default schema."""

    command: Command
    text: bytes | None
    user: str | None
    schema: str | None


def read(memory: ProcessMemory, part: Part, known: Collection[int]) -> dict[int, Statement]:
    """Return the statements that threads execute, by thread id.

    ``known`` contains the ids of the server's threads. A thread that seems to execute several commands is
    omitted.
    """
    found = commands(memory, part)
    thds = [one.thd for one in found]
    threads = _threads(memory, part, thds, known)
    times = Counter(threads)
    columns = texts(memory, found), names(memory, part, "user", thds), names(memory, part, "schema", thds)
    statements = [Statement(*fields) for fields in zip(found, *columns, strict=True)]
    return {tid: one for tid, one in zip(threads, statements, strict=True) if tid and times[tid] == 1}


def commands(memory: ProcessMemory, part: Part) -> list[Command]:
    """Return the commands that connections execute, at most MOST_STATEMENTS."""
    all_thds = list(dict.fromkeys(sessions.addresses_of(memory, part)))
    numbers = _numbers(memory, part, "command", all_thds)
    busy = [thd for thd, number in zip(all_thds, numbers, strict=True) if number not in _WITHOUT]
    thds = busy[:MOST_STATEMENTS]
    fields = [_numbers(memory, part, name, thds) for name in _FIELDS]
    found = [Command(*values) for values in zip(thds, *fields, strict=True)]
    return [one for one in found if one.connection and one.number not in _WITHOUT]


def texts(memory: ProcessMemory, found: Sequence[Command]) -> list[bytes | None]:
    """Return the first bytes of each command's text; None if there is none."""
    places = [(one.start, min(one.length, MOST_BYTES) if one.start else 0) for one in found]
    return [raw or None for raw in memory.many(places)]


def names(memory: ProcessMemory, part: Part, name: str, thds: Sequence[int]) -> list[str | None]:
    """Return the string to which a member of each THD points; None if there is none."""
    member, bases = part.members[name], list(thds)
    if len(member.offsets) > 1:
        # A security context outside of the THD is that of a routine's definer, not of the connection.
        contexts = memory.numbers([thd + member.offsets[0] for thd in thds])
        inside = [0 < one - thd < _THD_BYTES for one, thd in zip(contexts, thds, strict=True)]
        bases = [one if near else 0 for one, near in zip(contexts, inside, strict=True)]
    starts = memory.numbers([base + member.offsets[-1] if base else 0 for base in bases])
    return _strings(memory, starts)


def _numbers(memory: ProcessMemory, part: Part, name: str, thds: Sequence[int]) -> list[int]:
    return memory.numbers([thd + part.offset(name) for thd in thds], part.size(name))


def _threads(memory: ProcessMemory, part: Part, thds: Sequence[int], known: Collection[int]) -> list[int]:
    """Return the id of the thread of each THD; 0 if it is unknown.

    The THD contains the id, which has four bytes, or the ``pthread_t``, a pointer to ``struct pthread``.
    """
    handles = _numbers(memory, part, "thread", thds)
    if part.size("thread") != _HANDLE_BYTES:
        return handles
    layout = descriptor()
    last = layout.tids[-1] + 4
    raw = memory.many([(handle, last) for handle in handles])
    descriptors = [
        one if one and all(_number(one, at, 8) == handle for at in layout.own) else None
        for one, handle in zip(raw, handles, strict=True)
    ]
    usable = [one for one in descriptors if one]
    offsets = sorted(layout.tids, key=lambda one: abs(one - layout.tid))
    at = next((at for at in offsets if _are_ids([_number(one, at, 4) for one in usable], known)), None)
    if at is None:
        return [0] * len(handles)
    return [_number(one, at, 4) if one else 0 for one in descriptors]


def _are_ids(numbers: list[int], known: Collection[int]) -> bool:
    """Return whether most numbers are ids of different threads. New threads may not be known yet."""
    return 2 * sum(one in known for one in set(numbers)) > len(numbers)


def _number(raw: bytes, at: int, size: int) -> int:
    return int.from_bytes(raw[at : at + size], "little")


def _strings(memory: ProcessMemory, starts: Sequence[int]) -> list[str | None]:
    """Return the C strings at ``starts``; None for one that is not mapped, empty or too long.

    A string is read in two parts, because the page after its end may not be mapped.
    """
    near = [min(_NAME_BYTES, _PAGE - start % _PAGE) for start in starts]
    first = memory.many([(start, size if start else 0) for start, size in zip(starts, near, strict=True)])
    second = memory.many(
        [(start + size, _NAME_BYTES - size if start else 0) for start, size in zip(starts, near, strict=True)]
    )
    found = []
    for one, two in zip(first, second, strict=True):
        text, end, _ = ((one or b"") + (two or b"")).partition(b"\0")
        found.append(text.decode(errors="replace") if end and text else None)
    return found
