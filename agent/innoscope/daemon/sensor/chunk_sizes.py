"""Limit the size of profile chunks in the sensor's replies."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from innoscope.common.json_size import text_bytes
from innoscope.sampling.profile_history import rare_stack

if TYPE_CHECKING:
    from innoscope.sampling.model import Frame
    from innoscope.sampling.profile_history import Chunk, ClassifiedStack

#: Maximum size of a chunk in JSON, in bytes. 2,000 stacks with 50 frames take 1 MB, and 5,000 distinct frames
#: another 1 MB.
CHUNK_BYTES: Final = 4 << 20
#: Maximum sizes in JSON, in bytes, without texts: a chunk's own fields, the count of one stack, a stack, the
#: index of a frame in a stack, and a frame.
_CHUNK, _COUNT, _STACK, _INDEX, _FRAME = 300, 24, 80, 8, 80


class ChunkSizes:
    """Limits the size of a server's chunks in a reply, which has each stack and each frame only once."""

    def __init__(self) -> None:
        self._frames: set[Frame] = set()
        self._stacks: set[ClassifiedStack] = set()

    def add(self, chunk: Chunk) -> tuple[Chunk, int]:
        """Add a chunk to the reply. Return what fits into CHUNK_BYTES, and an upper bound for its size.

        Stacks are added by descending count. Those that do not fit are merged into the ``[rare stacks]`` of
        their wait class, whose few bytes are not counted in the size, and counted in ``dropped``.
        """
        counts: Counter[ClassifiedStack] = Counter()
        size, dropped = _CHUNK, 0
        for stack, count in Counter(chunk.counts).most_common():
            cost = self._add_stack(stack, CHUNK_BYTES - size)
            if cost is not None:
                size += cost
                counts[stack] += count
            else:
                counts[rare_stack(stack.wait, stack.trust)] += count
                dropped += 1
        return replace(chunk, counts=counts, dropped=chunk.dropped + dropped), size

    def _add_stack(self, stack: ClassifiedStack, room: int) -> int | None:
        """Add the count of one stack, and return the bytes added. If they exceed ``room``, add nothing."""
        size = _COUNT
        new: set[Frame] = set()
        if stack not in self._stacks:
            new = {frame for frame in stack.frames if frame not in self._frames}
            size += _STACK + text_bytes(stack.wait) + _INDEX * len(stack.frames) + sum(map(_frame_bytes, new))
        if size > room:
            return None
        self._stacks.add(stack)
        self._frames |= new
        return size


def _frame_bytes(frame: Frame) -> int:
    return _FRAME + text_bytes(frame.function or "") + text_bytes(frame.module)
