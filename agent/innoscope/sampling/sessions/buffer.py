"""Buffer the samples of busy threads in the sensor, until the agent fetches them."""

from __future__ import annotations

import threading
import time
from array import array
from collections import deque
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final

from innoscope.common.json_size import text_bytes
from innoscope.sampling.classify import IDLE
from innoscope.sampling.latches import LATCH_WAITS, named
from innoscope.sampling.sessions.model import Batch, Sampled, SharedValues

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from innoscope.sampling.model import Thread
    from innoscope.sampling.profile_history import ClassifiedStack
    from innoscope.target.model import Query

#: Maximum age in seconds of the samples in a server's buffer. By default, the agent fetches them every 10 s.
SPAN_S: Final = 180.0
#: Maximum number of samples in a server's buffer.
MAX_SAMPLES: Final = 20_000
#: Maximum total number of frames in the shapes of a server's buffer. Only runaway recursion exceeds it.
_MAX_FRAMES: Final = 100 * MAX_SAMPLES
#: Maximum number of frames in the buffers of all servers, if their number is passed to ``share``.
_TOTAL_FRAMES: Final = 4 * _MAX_FRAMES
#: Number of samples after which a reply contains no further snapshot.
REPLY_SAMPLES: Final = 10_000
#: Maximum number of snapshots in one reply.
REPLY_SNAPSHOTS: Final = 200
#: Maximum size of one reply in JSON for all servers together, in bytes.
REPLY_BYTES: Final = 12 << 20
#: Maximum size of a snapshot in JSON, in bytes, including names. Beyond it, threads that would add names are
#: stored without them. Even with MAX_SAMPLES such rows in addition, a snapshot takes less than 8 MiB and fits
#: into one reply.
SNAPSHOT_BYTES: Final = 6 << 20
#: Maximum size of a row in JSON, in bytes: a thread id, the index of a shape and two connection ids.
_ROW: Final = 60
#: Maximum size of an index in JSON, in bytes.
_INDEX: Final = 8
#: Maximum size in JSON of a shape or a digest without its text, in bytes.
_SHAPE: Final = 80
#: Maximum number of shapes that are shared between snapshots, in addition to twice those in the buffer.
_SPARE_SHAPES: Final = 200
#: Maximum number of cached names of latches.
_MAX_LATCHES: Final = 1_000
#: Maximum number of frames of a shape that is shared between snapshots.
_SHARED_FRAMES: Final = 200
#: Number of innermost functions that are searched for a latch.
_LATCH_FUNCTIONS: Final = 64
#: Maximum number of digests that are shared between snapshots.
_MAX_DIGESTS: Final = 5_000
#: Maximum length of a name in characters.
_MAX_TEXT: Final = 128
#: Maximum length of a digest's text in characters.
_MAX_DIGEST: Final = 1_024
_US: Final = 1e6
#: Placeholder for None in an array.
_NONE: Final = -1
_MAX_ID: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class _Entry:
    """A snapshot, in 24 bytes per sample. ``positions`` contains indexes into ``shapes``.

    ``bytes`` is an upper bound on the size in JSON, and ``frames`` the total number of frames in the shapes.
    """

    number: int
    at: int
    weight: float
    bytes: int
    frames: int
    shapes: tuple[SharedValues, ...]
    positions: array[int]
    tids: array[int]
    connections: array[int]
    blockers: array[int]


class SampleBuffer:
    """The samples of one server's last three minutes (``SPAN_S``). Thread-safe."""

    def __init__(self, span_s: float = SPAN_S, most: int = MAX_SAMPLES) -> None:
        self._span_us, self._most = int(span_s * _US), most
        self._lock = threading.Lock()
        self._entries: deque[_Entry] = deque()
        self._samples = self._frames = 0
        self._most_frames = _MAX_FRAMES
        self._number = 0
        self._shapes: dict[SharedValues, tuple[SharedValues, int]] = {}
        self._most_shapes = _SPARE_SHAPES
        self._digests: dict[str, str] = {}
        self._latches: dict[tuple[str, ...], str] = {}

    def share(self, servers: int) -> None:
        """Reduce the limit if there are so many servers that all buffers together could be too large."""
        with self._lock:
            self._most_frames = min(_MAX_FRAMES, _TOTAL_FRAMES // servers)
            while self._frames > self._most_frames:
                self._drop_oldest()

    def add(
        self, taken_at: float, weight: float, threads: Iterable[tuple[str, ClassifiedStack, Thread]]
    ) -> None:
        """Add the busy threads of a snapshot, taken at Unix time ``taken_at``, with their kinds and stacks.

        ``weight`` is the time that the snapshot represents, in seconds. If the names do not fit into a reply,
        which happens only with a hostile server, the affected threads keep only their kind, wait class and
        trust.
        """
        shapes: dict[SharedValues, int] = {}
        columns = array("I"), array("I"), array("q"), array("q")
        functions: set[str] = set()
        size = _SHAPE  # the snapshot's time and weight
        threads = list(threads)
        queries = {thread.query.connection_id: thread.query for _, _, thread in threads if thread.query}
        # The connection of a busy thread without a statement is known if the thread blocks another one.
        blockers = {one.thread: one.connection for _, _, thread in threads if (one := thread.blocked)}
        for kind, stack, thread in threads:
            blocker = thread.blocked.connection if thread.blocked else None
            shape, cost = self._shape(kind, stack, thread, queries.get(blocker) if blocker else None)
            size += _ROW
            if shape not in shapes:
                new = {*shape.stack} - functions
                cost += sum(text_bytes(name) + _INDEX for name in new)
                if size + cost > SNAPSHOT_BYTES:
                    shape = _plain(kind, thread)
                else:
                    size += cost
                    functions |= new
            values = shapes.setdefault(shape, len(shapes)), thread.ns_tid
            own = thread.query.connection_id if thread.query else blockers.get(thread.ns_tid)
            ids = _id(own), _id(blocker)
            for column, value in zip(columns, (*values, *ids), strict=True):
                column.append(value)
        with self._lock:
            self._number = max(self._number + 1, time.time_ns())
            frames = sum(len(shape.stack) for shape in shapes)
            entry = _Entry(self._number, int(taken_at * _US), weight, size, frames, tuple(shapes), *columns)
            self._entries.append(entry)
            self._samples += len(entry.tids)
            self._frames += frames
            while self._entries and self._is_beyond_limits(entry.at):
                self._drop_oldest()

    def since(
        self, cursor: int, most: int = REPLY_SAMPLES, most_bytes: int = REPLY_BYTES
    ) -> tuple[int, Batch]:
        """Return the next cursor, and the samples after ``cursor``. Call again if ``more`` is true.

        The snapshot that reaches ``most`` samples is the last one returned, and the batch has at most
        ``most_bytes``. A cursor from an earlier process remains valid. If it is ahead of all numbers, all
        samples are returned.
        """
        with self._lock:
            found: list[_Entry] = []
            size, more = 0, False
            for entry in self._after(cursor):
                if most <= 0 or len(found) == REPLY_SNAPSHOTS or size + entry.bytes > most_bytes:
                    more = True
                    break
                found.append(entry)
                size += entry.bytes
                most -= len(entry.tids)
            digests = dict(self._digests)
        return (found[-1].number if found else cursor), _batch(found, digests, size, more)

    def pending_bytes(self, cursor: int) -> int:
        """Return an upper bound on the size in JSON of all samples after ``cursor``."""
        with self._lock:
            return sum(entry.bytes for entry in self._after(cursor))

    def _after(self, cursor: int) -> Iterator[_Entry]:
        newest = self._entries[-1].number if self._entries else 0
        after = cursor if cursor <= newest else 0
        return (entry for entry in self._entries if entry.number > after)

    def _drop_oldest(self) -> None:
        oldest = self._entries.popleft()
        self._samples -= len(oldest.tids)
        self._frames -= oldest.frames

    def _is_beyond_limits(self, now_us: int) -> bool:
        # An entry from the future was added before the clock was set back. It expires as well.
        full = self._samples > self._most or self._frames > self._most_frames
        return full or abs(now_us - self._entries[0].at) > self._span_us

    def _shape(
        self, kind: str, stack: ClassifiedStack, thread: Thread, blocker: Query | None
    ) -> tuple[SharedValues, int]:
        """Return a thread's shape, and the maximum size of the shape in JSON without its functions.

        ``blocker`` is the query of the connection that blocks the thread.
        """
        query = thread.query
        shape = SharedValues(
            kind,
            _cut(query.user) if query else None,
            _cut(query.db) if query else None,
            self._digest(query) if query else None,
            _cut(query.command) if query else None,
            thread.wait,
            self._object(stack, thread),
            self._digest(blocker) if blocker else None,
            query.trust if query else None,
            thread.trust.value,
            stack.labels,
        )
        known = self._shapes.get(shape)
        if known is None:
            known = shape, self._bytes(shape)
            if len(shape.stack) <= _SHARED_FRAMES:
                self._share(known)
        return known

    def _share(self, known: tuple[SharedValues, int]) -> None:
        """Share a shape between snapshots. If there are too many, forget those of expired snapshots."""
        if len(self._shapes) >= self._most_shapes:
            used = set(chain.from_iterable(entry.shapes for entry in self._entries))
            self._shapes = {shape: one for shape, one in self._shapes.items() if shape in used}
            self._most_shapes = 2 * len(self._shapes) + _SPARE_SHAPES
        self._shapes[known[0]] = known

    def _bytes(self, shape: SharedValues) -> int:
        """Return an upper bound on the size in JSON of a shape and its digests, without its functions."""
        digests = [self._digests.get(one or "", "") for one in (shape.digest, shape.blocker_digest)]
        texts = text_bytes("".join(filter(None, shape[:-1]))) + sum(map(text_bytes, digests))
        return texts + _INDEX * len(shape.stack) + _SHAPE * (1 + len(digests))

    def _object(self, stack: ClassifiedStack, thread: Thread) -> str | None:
        """Return the name of the lock or latch that a thread is waiting for."""
        if thread.blocked is not None:
            return _cut(thread.blocked.object)
        return self._latch(stack.labels[:_LATCH_FUNCTIONS]) if stack.wait in LATCH_WAITS else None

    def _latch(self, functions: tuple[str, ...]) -> str | None:
        """Return the name of the latch that a thread with these innermost functions is waiting for."""
        if len(self._latches) >= _MAX_LATCHES:
            self._latches.clear()
        if functions not in self._latches:
            self._latches[functions] = named(functions)
        return _cut(self._latches[functions])

    def _digest(self, query: Query) -> str | None:
        """Return the id of the statement's digest, and keep the text for ``since``."""
        if query.digest_id is None or not query.digest_text:
            return None
        if len(self._digests) >= _MAX_DIGESTS:
            self._digests.clear()
        self._digests[query.digest_id] = query.digest_text[:_MAX_DIGEST]
        return query.digest_id


def is_busy(thread: Thread) -> bool:
    """Return whether a thread is executing a statement or has a wait class that is not idle."""
    return thread.query is not None or thread.wait not in IDLE


def _plain(kind: str, thread: Thread) -> SharedValues:
    """Return the shape of a thread without names that the server chooses."""
    return SharedValues(kind, None, None, None, None, thread.wait, None, None, None, thread.trust.value, ())


def _id(connection: int | None) -> int:
    return connection if connection is not None and 0 < connection <= _MAX_ID else _NONE


def _cut(text: str | None) -> str | None:
    return text[:_MAX_TEXT] if text else None


def _batch(entries: list[_Entry], digests: dict[str, str], size: int, more: bool) -> Batch:
    distinct = dict.fromkeys(chain.from_iterable(one.shapes for one in entries))
    shapes = {shape: number for number, shape in enumerate(distinct)}
    snapshots = []
    for one in entries:
        numbers = [shapes[shape] for shape in one.shapes]
        snapshots.append(
            Sampled(
                one.at,
                one.weight,
                one.tids.tolist(),
                [numbers[at] for at in one.positions],
                [None if value == _NONE else value for value in one.connections],
                [None if value == _NONE else value for value in one.blockers],
            )
        )
    wanted = {shape.digest for shape in shapes} | {shape.blocker_digest for shape in shapes}
    texts = {key: text for key, text in digests.items() if key in wanted}
    return Batch(list(shapes), snapshots, texts, size, more)
