"""Read many numbers from another process's memory with a few system calls."""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from innoscope import _native
from innoscope.target.native_errors import translating

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from innoscope._native import Member

Number = int | float

#: Maximum size in bytes of an array that is read in one piece: MySQL 8.0's slots for asynchronous I/O with 16
#: read or write threads, each of which has 256 slots of 264 bytes. A larger array is not read.
SPAN: Final = 1056 << 10
#: If the distance between two elements exceeds this number of bytes, each element is read separately. The
#: buffer pools of MySQL 8.0 are 9,552 bytes apart.
_SPARSE: Final = 4096
#: Maximum number of elements that are read separately: innodb_buffer_pool_instances is at most 64.
_MOST_SPARSE: Final = 64
#: Maximum distance in bytes between two adjacent elements that are read separately.
_DISTANCE: Final = 1 << 20
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


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """One number in memory, or the sum of an array: ``member`` relative to ``base``. Compared by identity.

    If debug information does not contain the number of elements, ``length`` is the term that holds it, or
    ``end`` is the term that holds the address past the last element.
    """

    base: int
    member: Member
    length: Term | None = None
    end: Term | None = None


def read(pid: int, terms: Iterable[Term]) -> dict[Term, Number | None]:
    """Return the sum of each term's elements; None where ``read_elements`` returns None.

    Raise NoSuchProcess if the server has exited, or NoRights if we are not allowed to read its memory.
    """
    found = read_elements(pid, terms)
    return {term: None if numbers is None else sum(numbers) for term, numbers in found.items()}


def read_elements(pid: int, terms: Iterable[Term]) -> dict[Term, Sequence[Number] | None]:
    """Return the elements of each term, in the given order.

    Return None for a term if a pointer on its path is NULL, if its memory is not mapped, or if it has no
    elements or implausibly many.

    The values are not read at the same instant: the kernel copies them one after the other, within a few
    microseconds. Raise the same errors as ``read``.
    """
    wanted = list(dict.fromkeys(terms))
    lengths = [one for term in wanted for one in (term.length, term.end) if one is not None]
    counted = read(pid, lengths) if lengths else {}
    places = _follow(pid, wanted)
    pieces = [_pieces(term, place, counted) for term, place in zip(wanted, places, strict=True)]
    found = _in_parts(pid, [piece for several in pieces for piece in several])
    return {
        term: _elements(term.member, [next(found) for _ in several]) if several else None
        for term, several in zip(wanted, pieces, strict=True)
    }


def _follow(pid: int, terms: list[Term]) -> list[int]:
    """Follow the pointers of each term and return its address; 0 if a pointer is NULL or not mapped."""
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
    count = member.count or 2  # for a pointer, the number of elements is checked at read time
    if code(member) not in _CODES or member.stride % member.size:
        return False
    return member.stride <= _DISTANCE and _is_plausible(member, count)


def code(member: Member) -> tuple[str, int]:
    """Return the kind and size of a member's elements. Pointers count as unsigned numbers."""
    return "unsigned" if member.kind == "pointer" else member.kind, member.size


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


def _is_plausible(member: Member, count: int) -> bool:
    if member.stride > _SPARSE:
        return count <= _MOST_SPARSE
    return (count - 1) * member.stride + member.size <= SPAN


def _pieces(term: Term, place: int, counted: Mapping[Term, Number | None]) -> list[tuple[int, int]]:
    """Return the ``(address, size)`` of the pieces to read; empty if there are no elements or too many."""
    member = term.member
    count = _count(term, place, counted)
    if not place or count < 1 or not _is_plausible(member, count):
        return []
    if member.stride > _SPARSE:
        return [((place + number * member.stride) & _ADDRESS, member.size) for number in range(count)]
    return [(place, (count - 1) * member.stride + member.size)]


def _count(term: Term, place: int, counted: Mapping[Term, Number | None]) -> int:
    """Return a term's number of elements. ``place`` is the address of the member in the first element."""
    if term.length is not None:
        return int(counted.get(term.length) or 0)
    if term.end is not None:
        first = place - term.member.offsets[-1]
        return (int(counted.get(term.end) or 0) - first) // (term.member.stride or 1)
    return term.member.count


def _elements(member: Member, pieces: Sequence[bytes | None]) -> Sequence[Number] | None:
    """Return the elements in the pieces; None if one of them was not read."""
    raw = [piece for piece in pieces if piece is not None]
    if len(raw) < len(pieces):
        return None
    # Elements are aligned to their size, as in C.
    numbers = array(_CODES[code(member)], b"".join(raw))
    return numbers if len(raw) > 1 else numbers[:: member.stride // member.size or 1]


def read_many(pid: int, places: list[tuple[int, int]]) -> list[bytes | None]:
    """Return the bytes at each ``(address, size)``; None if it is not mapped.

    Raise NoSuchProcess if the process has exited, or NoRights if we are not allowed to read its memory.
    """
    if not places:
        return []
    with translating(pid):
        return _native.read_many(pid, places)
