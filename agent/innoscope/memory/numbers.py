"""Read many numbers from another process's memory with a few system calls."""

from __future__ import annotations

import struct
from array import array
from typing import TYPE_CHECKING, Final

from innoscope import _native
from innoscope.target.native_errors import translating

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from innoscope._native import Member
    from innoscope.memory.plan import Term

Number = int | float

#: Maximum elements behind a pointer, because the maximum of innodb_buffer_pool_instances is 64.
_MOST_ELEMENTS: Final = 64
#: Limit on the bytes from the first to the last element of a term:
#: four times the size of 64 buffer pools in MySQL 5.6.
SPAN: Final = 288 << 10
#: Maximum number of bytes per read.
_PART: Final = 4 << 20
_ADDRESS: Final = (1 << 64) - 1
#: Type codes of ``array`` by kind and size.
_CODES: Final[Mapping[tuple[str, int], str]] = {
    (kind, size): code
    for kind, codes in (("unsigned", "BHIQ"), ("signed", "bhiq"), ("float", "  fd"))
    for code, size in zip(codes, (1, 2, 4, 8), strict=True)
    if code != " "
}
_POINTER: Final = struct.Struct("<Q")


def read(pid: int, terms: Iterable[Term]) -> dict[Term, Number | None]:
    """Return the value of each term, in the given order; None if a pointer on the term's path is still NULL.

    The values are not from the same point in time: the kernel copies them one after the other, within a few
    microseconds. Raises NoSuchProcess and NoRights.
    """
    wanted = list(dict.fromkeys(terms))
    lengths = [term.length for term in wanted if term.length is not None]
    counted = read(pid, lengths) if lengths else {}
    places = _follow(pid, wanted)
    spans = [(place, _span(term, counted)) for term, place in zip(wanted, places, strict=True)]
    found = _in_parts(pid, [(place, span) for place, span in spans if place and span])
    return {
        term: _sum(term.member, next(found)) if place and span else None
        for term, (place, span) in zip(wanted, spans, strict=True)
    }


def _follow(pid: int, terms: list[Term]) -> list[int]:
    """Follow the pointers of each term and return its address; 0 if a pointer is NULL."""
    places = [(term.base + term.member.offsets[0]) & _ADDRESS for term in terms]
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
            places[i] = (target + terms[i].member.offsets[level]) & _ADDRESS if target else 0
    return places


def is_readable(member: Member) -> bool:
    """Return whether the member is a number, or an array of numbers that is not implausibly large."""
    count = member.count or _MOST_ELEMENTS
    return (
        (member.kind, member.size) in _CODES
        and member.stride % member.size == 0
        and (count - 1) * member.stride + member.size <= SPAN
    )


def _in_parts(pid: int, places: list[tuple[int, int]]) -> Iterator[bytes | None]:
    part: list[tuple[int, int]] = []
    size = 0
    for place in places:
        if size + place[1] > _PART:
            yield from read_many(pid, part)
            part, size = [], 0
        part.append(place)
        size += place[1]
    yield from read_many(pid, part)


def _span(term: Term, counted: Mapping[Term, Number | None]) -> int:
    """Return the size of all elements in bytes; 0 if there are none or implausibly many."""
    member = term.member
    count = member.count if term.length is None else int(counted.get(term.length) or 0)
    if count < 1 or (term.length is not None and count > _MOST_ELEMENTS):
        return 0
    return (count - 1) * member.stride + member.size


def _sum(member: Member, raw: bytes | None) -> Number | None:
    if raw is None:
        return None
    # Elements are aligned to their size, as in C.
    numbers = array(_CODES[member.kind, member.size], raw)
    return sum(numbers[:: member.stride // member.size or 1])


def read_many(pid: int, places: list[tuple[int, int]]) -> list[bytes | None]:
    """Return the bytes at each ``(address, size)``; None if unmapped. Raises NoSuchProcess and NoRights."""
    if not places:
        return []
    with translating(pid):
        return _native.read_many(pid, places)
