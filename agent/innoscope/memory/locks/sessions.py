"""Read the connections, their threads and their statements from the server's memory."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from innoscope.memory.locks.layout import VTABLE
from innoscope.memory.thread_descriptor import descriptor
from innoscope.target.digests import without_literals

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    from innoscope.memory.locks.layout import LayoutPart, ProcessMemory

#: Maximum number of connections to read.
_MOST: Final = 20_000
#: Maximum number of bytes of a statement to read.
_TEXT_BYTES: Final = 1_024
#: Offsets in a std::set: root, left and right child, value (libstdc++, stl_tree.h).
_ROOT, _LEFT, _RIGHT, _VALUE = 16, 16, 24, 32
_POINTER: Final = 8


@dataclass(frozen=True, slots=True)
class ServerSession:
    """A connection: ``address`` of its THD, the thread that serves it, and its statement without literals."""

    address: int
    thread: int
    connection: int
    text: str


def read(
    memory: ProcessMemory, part: LayoutPart, threads: Container[int], *, with_text: bool = True
) -> list[ServerSession]:
    """Return the connections that ``threads`` are currently serving."""
    addresses = addresses_of(memory, part)
    served = threads_of(memory, _numbers(memory, part, "thread", addresses))
    connections = _numbers(memory, part, "connection", addresses)
    texts = _texts(memory, part, addresses) if with_text else [""] * len(addresses)
    return [
        ServerSession(address, thread, connection, text)
        for address, thread, connection, text in zip(addresses, served, connections, texts, strict=True)
        if thread in threads and connection
    ]


def addresses_of(memory: ProcessMemory, part: LayoutPart) -> list[int]:
    """Return the addresses of the THDs of all connections, at most ``_MOST``."""
    return _of_class(memory, part, list(islice(_WALKS[part.options["walk"]](memory, part), _MOST)))


def threads_of(memory: ProcessMemory, handles: list[int]) -> list[int]:
    """Return the thread id for each pthread_t handle. An id is valid only if the process has that thread."""
    tid = descriptor().tid
    return memory.numbers([handle + tid for handle in handles], 4)


def _linked(memory: ProcessMemory, part: LayoutPart) -> Iterator[int]:
    """Yield the nodes of a base_ilist, except its sentinel, the node without a successor."""
    node = memory.number(part.roots["first"] + part.offset("first"))
    passed: set[int] = set()
    while node and node not in passed and len(passed) < _MOST:
        passed.add(node)
        following = memory.number(node + part.offset("next"))
        if following:
            yield node
        node = following


def _tree(memory: ProcessMemory, part: LayoutPart) -> Iterator[int]:
    """Yield the values of the std::set that a pointer refers to, level by level."""
    level = [memory.number(memory.number(part.roots["first"]) + _ROOT)]
    passed: set[int] = set()
    while level and len(passed) < _MOST:
        level = [node for node in dict.fromkeys(level) if node and node not in passed]
        passed.update(level)
        yield from memory.numbers([node + _VALUE for node in level])
        level = memory.numbers([node + side for node in level for side in (_LEFT, _RIGHT)])


def _arrays(memory: ProcessMemory, part: LayoutPart) -> Iterator[int]:
    """Yield the elements of the arrays in the object that a pointer refers to.

    An array contains a pointer to its elements. Since MySQL 8.0, an array of only a few elements stores them
    in place of the pointer. The server shifts the elements when a connection begins or ends
    (Global_THD_manager::add_thd and remove_thd, mysqld_thd_manager.cc in 5.7), so a read can miss an element
    or find it twice. Therefore all elements are read twice.
    """
    yield from dict.fromkeys(one for _ in range(2) for one in islice(_elements(memory, part), _MOST))


def _elements(memory: ProcessMemory, part: LayoutPart) -> Iterator[int]:
    first, size = memory.number(part.roots["first"]), part.size("array_bytes")
    for array in range(first, first + part.options["arrays"] * size, size):
        items = memory.number(array + part.offset("items"))
        count = memory.number(array + part.offset("count"))
        if "inline" in part.members:
            inline = memory.number(array + part.offset("inline"), part.size("inline"))
            if inline * _POINTER <= size:  # negative, hence a huge unsigned number, if there is a pointer
                items, count = array + part.offset("items"), inline
        yield from memory.numbers([items + _POINTER * place for place in range(min(count, _MOST))])


_WALKS: Final[dict[str, Callable[[ProcessMemory, LayoutPart], Iterator[int]]]] = {
    "linked": _linked,
    "tree": _tree,
    "arrays": _arrays,
}


def _of_class(memory: ProcessMemory, part: LayoutPart, addresses: list[int]) -> list[int]:
    """Return the addresses of objects of class THD; all addresses if the catalog lacks its vtable."""
    if "table" not in part.roots:
        return addresses
    table = part.roots["table"] + VTABLE
    return [one for one, found in zip(addresses, memory.numbers(addresses), strict=True) if found == table]


def _numbers(memory: ProcessMemory, part: LayoutPart, name: str, addresses: list[int]) -> list[int]:
    return memory.numbers([address + part.offset(name) for address in addresses], part.size(name))


def _texts(memory: ProcessMemory, part: LayoutPart, addresses: list[int]) -> list[str]:
    """Return the statement of each connection; "" for a statement that changed while it was read."""
    places = _statement_places(memory, part, addresses)
    raw = memory.many([(start, min(length, _TEXT_BYTES)) for start, length in places])
    after = _statement_places(memory, part, addresses)
    return [
        _text(content) if content and before == later else ""
        for content, before, later in zip(raw, places, after, strict=True)
    ]


def _statement_places(memory: ProcessMemory, part: LayoutPart, addresses: list[int]) -> list[tuple[int, int]]:
    starts, lengths = _numbers(memory, part, "text", addresses), _numbers(memory, part, "length", addresses)
    return [(start, length if start else 0) for start, length in zip(starts, lengths, strict=True)]


def _text(content: bytes) -> str:
    """Return the statement without literals; "" if the memory was reused and contains no statement."""
    text = content.decode(errors="replace").strip()
    sound = text[:1].isalpha() or text[:1] in ("(", "/")
    return without_literals(text) if sound and all(one.isprintable() or one.isspace() for one in text) else ""
