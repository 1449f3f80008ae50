"""The sensor's replies that continue from a cursor: profiles, and samples of busy threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from innoscope.daemon.protocol import messages
from innoscope.daemon.protocol.sample_encoding import encode_samples
from innoscope.daemon.protocol.stack_encoding import encode_chunks
from innoscope.sampling.sessions.buffer import REPLY_SAMPLES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from innoscope.daemon.sensor.watch import ServerSlot

#: Maximum number of profile chunks in one reply, for all servers together.
_MAX_CHUNKS: Final = 60


def profiles(slots: Iterable[tuple[str, ServerSlot]], cursor: Any) -> dict[str, Any]:
    """Return up to 60 chunks after the cursor (positions by server), or the oldest ones if it is None."""
    begun = messages.expect(cursor or {}, dict)
    left = _MAX_CHUNKS
    servers = {}
    for name, slot in slots:
        position, chunks = slot.profiles.since(messages.expect(begun.get(name, 0), int), left)
        left -= len(chunks)
        servers[name] = {
            "target": messages.encode_target(slot.target),
            "cursor": position,
            **encode_chunks(chunks),
        }
    return {"servers": servers}


def samples(slots: Iterable[tuple[str, ServerSlot]], cursor: Any) -> dict[str, Any]:
    """Return samples after the cursor: about REPLY_SAMPLES at most, for all servers together."""
    begun = messages.expect(cursor or {}, dict)
    left = REPLY_SAMPLES
    servers = {}
    for name, slot in slots:
        position, batch = slot.samples.since(messages.expect(begun.get(name, 0), int), left)
        left -= sum(len(one.tids) for one in batch.snapshots)
        servers[name] = {
            "target": messages.encode_target(slot.target),
            "cursor": position,
            **encode_samples(batch),
        }
    return {"servers": servers}
