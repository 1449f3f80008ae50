"""The open connections of the HTTP server: a bounded number, and who has most of them gives way."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import threading
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST: Final = 64
#: What one site is given of IPv6: counted as one address, or whoever has it would have 2**64.
_SITE_BITS: Final = 64


class Slot:
    """One connection's place. ``socket`` is replaced when TLS wraps it; ``client`` as of ``counted_as``."""

    def __init__(self, connection: socket.socket, client: str, seconds: float) -> None:
        self.socket = connection
        self.client = client
        self.busy = False
        self.ended = threading.Event()
        self.within(seconds)

    def within(self, seconds: float) -> None:
        """From now on it has so long for what comes next."""
        self.until = time.monotonic() + seconds

    def end(self) -> None:
        """Shut it down, which wakes the thread that waits for it; that thread closes it."""
        self.ended.set()
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)  # not TLS's own: another thread uses that


class Connections:
    """Keeps which connections are there and which of them are being answered.

    A thread belongs to each. When there are too many, one of the client that has most of them is ended: the
    one that has been without a whole request for longest. Whoever opens connections and is slow to say
    anything pushes out themselves. If all of that client's are being answered, it is the oldest.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._slots: dict[Slot, None] = {}  # in the order in which they were last used

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def crowded(self) -> bool:
        """Whether more than half of the places are taken."""
        return len(self._slots) > self._most // 2

    def add(self, connection: socket.socket, client: str, seconds: float) -> Slot:
        """Take one in, at the cost of another where there are too many; ``seconds``: to send a request."""
        slot = Slot(connection, client, seconds)
        with self._lock:
            if len(self._slots) >= self._most:
                victim = self._victim()
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

    def end_the_slow(self) -> None:
        """End those whose time is over: a byte now and then is no reason to wait on."""
        now = time.monotonic()
        with self._lock:
            for slot in self._slots:
                if now > slot.until:
                    slot.end()

    def close_all(self) -> None:
        """End all."""
        with self._lock:
            for slot in self._slots:
                slot.end()
            self._slots.clear()

    def _victim(self) -> Slot:
        has = Counter(slot.client for slot in self._slots)
        most = max(has.values())
        crowd = [slot for slot in self._slots if has[slot.client] == most]
        return next((one for one in crowd if not one.busy), crowd[0])


def counted_as(host: str) -> str:
    """The client whose connection from the address ``host`` it is: the address, in IPv6 its /64."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return str(ipaddress.ip_network((address, _SITE_BITS), strict=False))
        address = address.ipv4_mapped
    return str(address)
