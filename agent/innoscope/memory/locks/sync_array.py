"""Read InnoDB's sync array (MySQL): waiters of mutexes and rw-locks, and the owners of rw-locks.

An rw-lock stores its exclusive owner (in 5.7 and newer, its exclusive or SX owner). Since 8.0, it also stores
its reader if there is only one. Release builds do not store a mutex's owner. In 5.5 and 5.6, a mutex at least
stores the name of the source file in which it was created.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from innoscope.memory.locks.futexes import Wait
from innoscope.memory.locks.sessions import threads_of

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from innoscope.memory.locks.layout import LayoutPart, ProcessMemory

_CELLS: Final = 20_000
_ARRAYS: Final = 1_024
#: Number of cells read by one system call.
_AT_ONCE: Final = 256
_NAME_BYTES: Final = 200


def waits(memory: ProcessMemory, part: LayoutPart, threads: Container[int]) -> list[Wait]:
    """Return a Wait for each thread that sleeps in a sync array."""
    cells = _cells(memory, part)
    owners: dict[tuple[int, bool], tuple[tuple[int, ...], str]] = {}
    found = []
    for thread, object_, request in cells:
        mutex = request in part.options["mutexes"]
        key = (object_, mutex)
        if thread not in threads or not (mutex or request in part.options["locks"]):
            continue
        if key not in owners:
            writers = () if mutex else tuple(one for one in _owners(memory, part, object_) if one in threads)
            owners[key] = (writers, _name(memory, part, object_, mutex=mutex))
        writers, name = owners[key]
        found.append(Wait(thread, "InnoDB mutex" if mutex else "InnoDB rw-lock", object_, writers, name))
    return found


def _cells(memory: ProcessMemory, part: LayoutPart) -> list[tuple[int, int, int]]:
    """Return ``(thread id, object, request)`` for each cell in which a thread waits."""
    used = [cell for array in _arrays(memory, part) for cell in _cells_of_array(memory, part, array)]
    threads = threads_of(memory, [handle for handle, _, _ in used])
    return [(thread, object_, request) for thread, (_, object_, request) in zip(threads, used, strict=True)]


def _arrays(memory: ProcessMemory, part: LayoutPart) -> list[int]:
    first = memory.number(part.roots["array"])
    if part.options["cells"] == "one":
        return [first]
    count = min(memory.number(part.roots["count"]), _ARRAYS)
    return memory.numbers([first + 8 * number for number in range(count)])


def _cells_of_array(memory: ProcessMemory, part: LayoutPart, array: int) -> Iterator[tuple[int, int, int]]:
    """Yield ``(thread handle, object, request)`` for each cell in which a thread waits.

    Reading stops after the last used cell. InnoDB reuses free cells first, so used cells are near the start.
    """
    count = min(memory.number(array + part.offset("size")), _CELLS)
    used = memory.number(array + part.offset("used"))
    start, size = memory.number(array + part.offset("cell")), part.size("cell_bytes")
    for place in range(0, count, _AT_ONCE):
        if used <= 0:
            return
        cells = min(_AT_ONCE, count - place)
        [raw] = memory.many([(start + place * size, cells * size)])
        for cell in range(cells if raw else 0):
            thread, object_, request, waiting = (
                part.number(raw or b"", name, cell * size)
                for name in ("thread", "object", "request", "waiting")
            )
            used -= object_ != 0
            if object_ and waiting:
                yield thread, object_, request


def _owners(memory: ProcessMemory, part: LayoutPart, lock: int) -> list[int]:
    """Return the ids of the owners that the lock stores.

    ``writer_thread`` and ``reader_thread`` are valid only for certain values of ``lock_word``.
    """
    size = part.size("word")
    [raw] = memory.many([(lock + part.offset("word"), size)])
    if raw is None:
        return []
    word = int.from_bytes(raw, "little", signed=True)
    handles = []
    if word <= part.options["writer_up_to"]:
        handles.append(memory.number(lock + part.offset("writer")))
    if word in part.options.get("one_reader", ()):
        handles.append(memory.number(lock + part.offset("reader")))
    return threads_of(memory, handles)


def _name(memory: ProcessMemory, part: LayoutPart, object_: int, *, mutex: bool) -> str:
    """Return a description with the source file that created the object, such as ``a mutex of buf0buf.c``."""
    kind = "a mutex" if mutex else "an rw-lock"
    pointer = memory.number(object_ + part.offset("mutex_made_in" if mutex else "made_in"))
    [raw] = memory.many([(pointer, _NAME_BYTES)])
    file = (raw or b"").partition(b"\0")[0].decode(errors="replace")
    return f"{kind} of {PurePath(file).name}" if file.isprintable() and file else kind
