"""Numbers out of another process's memory: all of them with a handful of system calls."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from innoscope.target.native_errors import translating

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from innoscope.memory.layout import Member
    from innoscope.memory.plan import Term

Number = int | float

#: Elements behind a pointer, at most: innodb_buffer_pool_instances goes up to 64.
_MOST_ELEMENTS: Final = 64
_FORMATS: Final[Mapping[tuple[str, int], struct.Struct]] = {
    (kind, size): struct.Struct("<" + letter)
    for kind, letters in (("unsigned", "BHIQ"), ("signed", "bhiq"), ("float", "  fd"), ("pointer", "   Q"))
    for letter, size in zip(letters, (1, 2, 4, 8), strict=True)
    if letter != " "
}
_POINTER: Final = struct.Struct("<Q")


def read(pid: int, terms: Iterable[Term]) -> dict[Term, Number | None]:
    """The number of each term, in the order given; None where a pointer on the way is not set (yet).

    Not one instant: the kernel copies them one after the other, within some microseconds. Raises NoSuchProcess
    and NoRights.
    """
    wanted = list(dict.fromkeys(terms))
    lengths = [term.length for term in wanted if term.length is not None]
    counted = read(pid, lengths) if lengths else {}
    places = _follow(pid, wanted)
    spans = [(place, _span(term, counted)) for term, place in zip(wanted, places, strict=True)]
    found = iter(read_many(pid, [(place, span) for place, span in spans if place and span]))
    return {
        term: _sum(term.member, next(found)) if place and span else None
        for term, (place, span) in zip(wanted, spans, strict=True)
    }


def _follow(pid: int, terms: list[Term]) -> list[int]:
    """Where each term is, its pointers followed; 0 where one is not set."""
    places = [term.base + term.member.offsets[0] for term in terms]
    for level in range(1, max((len(term.member.offsets) for term in terms), default=1)):
        deeper = [i for i, term in enumerate(terms) if len(term.member.offsets) > level and places[i]]
        slots = list(dict.fromkeys(places[i] for i in deeper))
        raw = read_many(pid, [(slot, _POINTER.size) for slot in slots])
        targets = {
            slot: _POINTER.unpack(pointer)[0] if pointer else 0
            for slot, pointer in zip(slots, raw, strict=True)
        }
        for i in deeper:
            target = targets[places[i]]
            places[i] = target + terms[i].member.offsets[level] if target else 0
    return places


def _span(term: Term, counted: Mapping[Term, Number | None]) -> int:
    """Bytes from the first to the last element; 0 where there are none or too many to be true."""
    member = term.member
    count = member.count if term.length is None else int(counted.get(term.length) or 0)
    if count < 1 or (term.length is not None and count > _MOST_ELEMENTS):
        return 0
    return (count - 1) * member.stride + member.size


def _sum(member: Member, raw: bytes | None) -> Number | None:
    if raw is None:
        return None
    number = _FORMATS[member.kind, member.size]
    if len(raw) == member.size:
        first: Number = number.unpack(raw)[0]
        return first
    return sum(number.unpack_from(raw, at)[0] for at in range(0, len(raw), member.stride))


def read_many(pid: int, places: list[tuple[int, int]]) -> list[bytes | None]:
    """The bytes of each ``(address, size)``, None where it is not mapped. Raises NoSuchProcess and NoRights."""
    if not places:
        return []
    with translating(pid):
        from innoscope import _native

        return _native.read_many(pid, places)
