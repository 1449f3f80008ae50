"""The sensor's replies that continue from a cursor: profiles, and samples of busy threads.

All servers share the limits of a reply. The servers with the least data come first, so that servers with a
lot of data delay only each other. The sensor limits the size of each chunk and of each snapshot, so that at
least one fits into each reply: the cursor always advances.
"""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING, Any, Final

from innoscope.daemon.protocol import messages
from innoscope.daemon.protocol.sample_encoding import encode_samples
from innoscope.daemon.protocol.stack_encoding import encode_chunks
from innoscope.daemon.sensor.chunk_sizes import ChunkSizes
from innoscope.sampling.sessions.buffer import REPLY_BYTES, REPLY_SAMPLES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from innoscope.daemon.sensor.watch import ServerSlot
    from innoscope.sampling.profile_history import Chunk, ProfileHistory

#: Maximum number of profile chunks in one reply, for all servers together.
_MAX_CHUNKS: Final = 60


def profiles(slots: Iterable[tuple[str, ServerSlot]], cursor: Any) -> dict[str, Any]:
    """Return up to 60 chunks after the cursor (positions by server). None starts with the oldest chunks.

    ``more`` is whether there are others.
    """
    found = {name: (slot, _Chunks(slot.profiles, begun)) for name, slot, begun in _begun(slots, cursor)}
    _choose([chunks for _, chunks in found.values()])
    return {
        "more": any(chunks.next is not None for _, chunks in found.values()),
        "servers": {
            name: {
                "target": messages.encode_target(slot.target),
                "cursor": chunks.position,
                **encode_chunks(chunks.chosen),
            }
            for name, (slot, chunks) in found.items()
        },
    }


def _choose(servers: Iterable[_Chunks]) -> None:
    """Choose the chunks to send: in each step, the smallest of all servers' next chunks."""
    waiting = [(one.cost, number, one) for number, one in enumerate(servers) if one.next is not None]
    heapify(waiting)
    room = REPLY_BYTES
    for _ in range(_MAX_CHUNKS):
        if not waiting or waiting[0][0] > room:
            break
        cost, number, one = waiting[0]
        room -= cost
        one.choose()
        if one.next is None:
            heappop(waiting)
        else:
            heapreplace(waiting, (one.cost, number, one))


class _Chunks:
    """The chosen chunks of one server up to ``position``, and the ``next`` one, which adds ``cost`` bytes."""

    def __init__(self, history: ProfileHistory, position: int) -> None:
        self._history, self._sizes = history, ChunkSizes()
        self.position = position
        self.chosen: list[Chunk] = []
        self._read()

    def choose(self) -> None:
        """Choose the next chunk, and read the one after it."""
        if self.next is not None:
            self.chosen.append(self.next)
        self.position = self._following
        self._read()

    def _read(self) -> None:
        self.next: Chunk | None = None
        self.cost = 0
        self._following, chunks = self._history.since(self.position, 1)
        if chunks:
            self.next, self.cost = self._sizes.add(chunks[0])


def samples(slots: Iterable[tuple[str, ServerSlot]], cursor: Any) -> dict[str, Any]:
    """Return samples after the cursor (positions by server). None starts with the oldest samples.

    Once all servers together have REPLY_SAMPLES samples, no further snapshots are added. ``more`` is whether
    there are others.
    """
    left, room = REPLY_SAMPLES, REPLY_BYTES
    servers, more = {}, False
    begun = _begun(slots, cursor)
    for name, slot, position in sorted(begun, key=lambda one: one[1].samples.pending_bytes(one[2])):
        position, batch = slot.samples.since(position, left, room)
        more |= batch.more
        left -= sum(len(one.tids) for one in batch.snapshots)
        room -= batch.bytes
        servers[name] = {
            "target": messages.encode_target(slot.target),
            "cursor": position,
            **encode_samples(batch),
        }
    return {"more": more, "servers": servers}


def _begun(slots: Iterable[tuple[str, ServerSlot]], cursor: Any) -> list[tuple[str, ServerSlot, int]]:
    """Return the servers with their positions in the cursor."""
    positions = messages.decoded(cursor or {}, dict[str, int])
    return [(name, slot, positions.get(name, 0)) for name, slot in slots]
