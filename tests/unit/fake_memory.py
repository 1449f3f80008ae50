"""A fake process whose memory the tests write, and layouts of the connections and locks in it."""

from __future__ import annotations

from typing import Any

from innoscope._native import Member
from innoscope.memory.locks.layout import LayoutPart, ProcessMemory

TID = 0x2D0
THD = {"next": 8, "thread": 16, "connection": 24, "text": 32, "length": 40}
MDL = {"context": 200, "waiting_for": 208, "lock": 0x10, "holder": 0x18, "key": 0, "names": 4}
VTABLE = 0x7000


class FakeMemory(ProcessMemory):
    """The memory of a fake process, to which tests write bytes."""

    def __init__(self) -> None:
        self._bytes: dict[int, int] = {}

    def put(self, address: int, *values: int, size: int = 8) -> None:
        for place, value in enumerate(values):
            self.put_bytes(address + place * size, value.to_bytes(size, "little"))

    def put_bytes(self, address: int, content: bytes) -> None:
        self._bytes |= {address + place: value for place, value in enumerate(content)}

    def thread(self, handle: int, tid: int) -> int:
        self.put(handle + TID, tid, size=4)
        return handle

    def many(self, places: Any) -> list[bytes | None]:
        return [self._range(address, size) for address, size in places]

    def _range(self, address: int, size: int) -> bytes | None:
        found = [self._bytes.get(address + place) for place in range(size)]
        return None if None in found else bytes(one for one in found if one is not None)


def part(options: dict[str, Any], roots: dict[str, int], **offsets: int) -> LayoutPart:
    members = {
        name: Member((offset,), 4 if name == "word" else 8, "unsigned") for name, offset in offsets.items()
    }
    return LayoutPart(options, members, roots)


def thd(memory: FakeMemory, address: int, following: int, tid: int, connection: int, text: str = "") -> None:
    handle = memory.thread(0x900000 + 0x1000 * connection, tid)
    memory.put(address, 0, following, handle, connection, address + 0x500 if text else 0, len(text))
    memory.put_bytes(address + 0x500, text.encode())
