"""Buffer the samples of busy threads in the sensor, until the agent fetches them."""

from __future__ import annotations

import threading
import time
from array import array
from collections import deque
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final

from innoscope.sampling.classify import IDLE
from innoscope.sampling.latches import LATCH_WAITS, named
from innoscope.sampling.sessions.model import Batch, Sampled, Shape

if TYPE_CHECKING:
    from collections.abc import Iterable

    from innoscope.sampling.model import Thread
    from innoscope.sampling.profile_history import Stack
    from innoscope.target.model import Query

#: Limits of a server's buffer: age in seconds, and number of samples. The agent fetches them every 10 s.
SPAN_S: Final = 180.0
MAX_SAMPLES: Final = 20_000
#: Limits of one reply: number of samples and snapshots, and estimated bytes of JSON.
REPLY_SAMPLES: Final = 10_000
REPLY_SNAPSHOTS: Final = 200
REPLY_BYTES: Final = 6 << 20
#: Maximum bytes of JSON for a character, and estimated bytes for a row.
_CHARACTER: Final = 6
_ROW: Final = 40
#: Maximum number of shapes and of digests that are shared between snapshots.
_MAX_SHAPES: Final = 5_000
_MAX_DIGESTS: Final = 5_000
#: Maximum length in characters of a name, and of a digest's text.
_MAX_TEXT: Final = 128
_MAX_DIGEST: Final = 1_024
_US: Final = 1e6
#: Placeholder for None in an array.
_NONE: Final = -1
_MAX_ID: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class _Entry:
    """A snapshot, in 24 bytes per sample. ``positions`` contains indexes of ``shapes``.

    ``bytes`` is the estimated size as JSON.
    """

    number: int
    at: int
    weight: float
    bytes: int
    shapes: tuple[Shape, ...]
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
        self._samples = 0
        self._number = 0
        self._shapes: dict[Shape, tuple[Shape, int]] = {}
        self._digests: dict[str, str] = {}
        self._latches: dict[tuple[str, ...], str] = {}

    def add(self, taken_at: float, weight: float, threads: Iterable[tuple[str, Stack, Thread]]) -> None:
        """Add the busy threads of a snapshot, taken at Unix time ``taken_at``, with their kinds and stacks.

        ``weight`` is the seconds that the snapshot represents. If the names do not fit into a reply, which
        happens only with a hostile server, only the wait classes of the remaining threads are kept.
        """
        shapes: dict[Shape, int] = {}
        columns = array("I"), array("I"), array("q"), array("q")
        size = 0
        threads = list(threads)
        queries = {thread.query.connection_id: thread.query for _, _, thread in threads if thread.query}
        for kind, stack, thread in threads:
            blocker = thread.blocked.connection if thread.blocked else None
            shape, cost = self._shape(kind, stack, thread, queries.get(blocker) if blocker else None)
            size += _ROW
            if shape not in shapes:
                if size + cost > REPLY_BYTES:
                    shape = _plain(kind, thread)
                else:
                    size += cost
            values = shapes.setdefault(shape, len(shapes)), thread.ns_tid
            ids = _id(thread.query.connection_id if thread.query else None), _id(blocker)
            for column, value in zip(columns, (*values, *ids), strict=True):
                column.append(value)
        with self._lock:
            self._number = max(self._number + 1, time.time_ns())
            entry = _Entry(self._number, int(taken_at * _US), weight, size, tuple(shapes), *columns)
            self._entries.append(entry)
            self._samples += len(entry.tids)
            while self._entries and self._is_beyond_limits(entry.at):
                self._samples -= len(self._entries.popleft().tids)

    def since(self, cursor: int, most: int = REPLY_SAMPLES) -> tuple[int, Batch]:
        """Return the next cursor, and the samples after ``cursor``. Call again until there are none.

        The snapshot that reaches ``most`` samples is the last one returned. A cursor from an earlier process
        is valid. If it is ahead of all numbers, all samples are returned.
        """
        with self._lock:
            newest = self._entries[-1].number if self._entries else 0
            after = cursor if cursor <= newest else 0
            found: list[_Entry] = []
            size = 0
            for entry in self._entries:
                if entry.number <= after:
                    continue
                size += entry.bytes
                if most <= 0 or len(found) == REPLY_SNAPSHOTS or (found and size > REPLY_BYTES):
                    break
                found.append(entry)
                most -= len(entry.tids)
            digests = dict(self._digests)
        return (found[-1].number if found else cursor), _batch(found, digests)

    def _is_beyond_limits(self, now_us: int) -> bool:
        # An entry from the future was added before the clock was set back. It expires as well.
        return self._samples > self._most or abs(now_us - self._entries[0].at) > self._span_us

    def _shape(self, kind: str, stack: Stack, thread: Thread, blocker: Query | None) -> tuple[Shape, int]:
        """Return a thread's shape, and the shape's estimated size in JSON.

        ``blocker`` is the query that blocks the thread.
        """
        query = thread.query
        shape = Shape(
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
        if len(self._shapes) >= _MAX_SHAPES:
            self._shapes.clear()
        known = self._shapes.get(shape)
        if known is None:
            characters = sum(len(text) for text in shape[:-1] if text) + sum(map(len, shape.stack))
            characters += len(self._digests.get(shape.digest or "", ""))
            known = self._shapes[shape] = shape, _CHARACTER * characters + _ROW * len(shape.stack)
        return known

    def _object(self, stack: Stack, thread: Thread) -> str | None:
        """Return the name of the lock or latch that a thread is waiting for."""
        if thread.blocked is not None:
            return _cut(thread.blocked.object)
        return self._latch(stack.labels) if stack.wait in LATCH_WAITS else None

    def _latch(self, functions: tuple[str, ...]) -> str | None:
        """Return the name of the latch that a thread with this stack is waiting for."""
        if len(self._latches) >= _MAX_SHAPES:
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


def _plain(kind: str, thread: Thread) -> Shape:
    """Return the shape of a thread without names that the server chooses."""
    return Shape(kind, None, None, None, None, thread.wait, None, None, None, thread.trust.value, ())


def _id(connection: int | None) -> int:
    return connection if connection is not None and 0 < connection <= _MAX_ID else _NONE


def _cut(text: str | None) -> str | None:
    return text[:_MAX_TEXT] if text else None


def _batch(entries: list[_Entry], digests: dict[str, str]) -> Batch:
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
    return Batch(list(shapes), snapshots, {key: text for key, text in digests.items() if key in wanted})
