"""The open connections of the HTTP server: a bounded number, and the most idle one gives way."""

from __future__ import annotations

import contextlib
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST: Final = 64


class Slot:
    """One connection's place. ``socket`` is replaced when TLS wraps it."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.busy = False

    def end(self) -> None:
        """Shut it down, which wakes the thread that waits for it; that thread closes it."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)  # not TLS's own: another thread uses that


class Connections:
    """Keeps which connections are there and which of them are being answered.

    A thread belongs to each. When there are too many, the one that has been without a whole request for
    longest is ended: whoever opens connections and is slow to say anything pushes out themselves. If all are
    being answered, the oldest is ended.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._slots: dict[Slot, None] = {}  # in the order in which they were last used

    def __len__(self) -> int:
        return len(self._slots)

    def add(self, connection: socket.socket) -> Slot:
        """Take one in, at the cost of another where there are too many."""
        slot = Slot(connection)
        with self._lock:
            if len(self._slots) >= self._most:
                victim = next((one for one in self._slots if not one.busy), next(iter(self._slots)))
                del self._slots[victim]
                victim.end()
            self._slots[slot] = None
        return slot

    def remove(self, slot: Slot) -> None:
        """Forget one that has ended."""
        with self._lock:
            self._slots.pop(slot, None)

    @contextmanager
    def answering(self, slot: Slot) -> Iterator[None]:
        """While its request is answered; after that it is the one that was used last."""
        slot.busy = True
        try:
            yield
        finally:
            with self._lock:
                slot.busy = False
                if slot in self._slots:
                    del self._slots[slot]
                    self._slots[slot] = None

    def close_all(self) -> None:
        """End all."""
        with self._lock:
            for slot in self._slots:
                slot.end()
            self._slots.clear()
