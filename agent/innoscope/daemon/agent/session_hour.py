"""Keep samples of busy threads in bounded memory, for an hour by default.

Each step of ten seconds contains the database time in seconds, by thread kind, wait class, statement and
stack.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections import Counter, defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from innoscope.common import sanitize
from innoscope.sampling.profile_history import CHUNK_S, SPAN_S
from innoscope.sampling.sessions.model import stack_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from innoscope.sampling.sessions.model import Batch, SharedValues

#: Maximum size of all samples and texts, as estimated by ``used_bytes``. Beyond it, the oldest are dropped.
MAX_BYTES: Final = 700_000
#: Approximate maximum number of rows of a complete step. Beyond it, rare rows lose their stack first, then
#: their statement, so that sums by wait class stay exact.
MAX_ROWS: Final = 60
#: The same limit for a step to which samples are still added.
_MAX_OPEN: Final = 200
#: Maximum length of a statement in characters.
_MAX_TEXT: Final = 200
#: Maximum number of pairs of a kind and a wait class; the catalogs have fewer than 400. Threads of any other
#: pair count as _OTHER.
_MAX_CLASSES: Final = 1_000
_OTHER: Final = ("other", "other")
#: Estimated size of a step without its rows, in bytes.
_STEP_BYTES: Final = 500
#: Estimated size of a text without its characters, in bytes.
_TEXT_BYTES: Final = 250
#: Estimated size of a row of a complete step, in bytes.
_ROW_BYTES: Final = 22
#: Estimated size of a row of a step to which samples are still added, in bytes.
_OPEN_ROW_BYTES: Final = 200
_US: Final = 1e6
#: Placeholder id for the statement of a thread whose statement is not known.
UNKNOWN: Final = 0
#: Placeholder id for statements that are too rare to list.
OTHERS: Final = 1
#: Placeholder id for stacks that are too rare to list.
RARE: Final = 0
_DIGITS: Final = 16


class SessionRow(NamedTuple):
    """Threads of one kind (threads.yaml) and wait class, with the same statement and stack.

    ``digest`` is the first 16 digits of the statement's digest as a number, or UNKNOWN or OTHERS. ``stack``
    is the ``stack_id`` of the stack, or RARE.
    """

    kind: str
    wait: str
    digest: int
    stack: int


#: A row as (index of its kind and wait class, digest, stack).
_Key: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class _Step:
    """The samples of ten seconds, as columns: 22 bytes per row. ``at`` is a Unix time, a multiple of ten."""

    server: str
    at: float
    weight: float
    snapshots: int
    classes: array[int]
    digests: array[int]
    stacks: array[int]
    seconds: array[float]


@dataclass(frozen=True, slots=True)
class SessionStep:
    """The samples of ten seconds. ``names`` maps each index in ``classes`` to a kind and a wait class."""

    columns: _Step
    names: Sequence[tuple[str, str]]

    @property
    def at(self) -> float:
        """Return the Unix time at which the step begins."""
        return self.columns.at

    @property
    def weight(self) -> float:
        """Return the time observed, in seconds."""
        return self.columns.weight

    @property
    def snapshots(self) -> int:
        """Return the number of snapshots."""
        return self.columns.snapshots

    def rows(self) -> Iterator[tuple[SessionRow, float]]:
        """Yield each row and its database time in seconds. A list of an hour's rows would take megabytes."""
        of = self.columns
        for number, digest, stack, seconds in zip(of.classes, of.digests, of.stacks, of.seconds, strict=True):
            yield SessionRow(*self.names[number], digest, stack), seconds


class _Open:
    """A step to which samples are still added, with a limited number of rows."""

    def __init__(self, at: float) -> None:
        self.at, self.weight, self.snapshots = at, 0.0, 0
        self.seconds: defaultdict[_Key, float] = defaultdict(float)
        self.texts: dict[int, str] = {}

    def add(self, row: _Key, seconds: float, text: str | None) -> None:
        if row not in self.seconds and len(self.seconds) >= _MAX_OPEN:
            self.shrink()
        if text is not None:
            self.texts[row[1]] = text
        self.seconds[row] += seconds

    def shrink(self) -> None:
        """Reduce the step to about MAX_ROWS rows."""
        self.seconds = defaultdict(float, self.rows())
        self.texts = {row[1]: self.texts[row[1]] for row in self.seconds if row[1] in self.texts}

    @property
    def used_bytes(self) -> int:
        """Return the estimated size."""
        texts = sum(_text_bytes(text) for text in self.texts.values())
        return _STEP_BYTES + _OPEN_ROW_BYTES * len(self.seconds) + texts

    def rows(self) -> list[tuple[_Key, float]]:
        """Return the rows, the largest first.

        If there are more than MAX_ROWS, merge all but the ``MAX_ROWS // 2`` largest ones.
        """
        rows = _ranked(self.seconds)
        for coarser in (_without_stack, _without_statement):
            if len(rows) <= MAX_ROWS:
                break
            fewer = defaultdict(float, rows[: MAX_ROWS // 2])
            for row, seconds in rows[MAX_ROWS // 2 :]:
                fewer[coarser(row)] += seconds
            rows = _ranked(fewer)
        return rows


class SessionHour:
    """The samples of all servers, for at most ``keep_s`` seconds and ``most_bytes`` bytes. Thread-safe."""

    def __init__(
        self,
        keep_s: float = SPAN_S,
        most_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._keep_s, self._most_bytes, self._clock = keep_s, most_bytes, clock
        self._lock = threading.Lock()
        self._steps: deque[_Step] = deque()
        self._open: dict[str, _Open] = {}
        self._classes: dict[tuple[str, str], int] = {_OTHER: 0}
        self._texts: dict[int, str] = {}
        self._uses: Counter[int] = Counter()  # number of steps that contain a digest
        self._bytes = 0

    def add(self, server: str, batch: Batch) -> None:
        """Add samples of a server."""
        with self._lock:
            rows = [self._row(shape) for shape in batch.shapes]
            texts = [
                self._text(row[1], batch.digests.get(shape.digest or ""))
                for row, shape in zip(rows, batch.shapes, strict=True)
            ]
            for sampled in batch.snapshots:
                step = self._step_at(server, sampled.at / _US // CHUNK_S * CHUNK_S)
                step.weight += sampled.weight
                step.snapshots += 1
                for number in sampled.shapes:
                    step.add(rows[number], sampled.weight, texts[number])
            self._drop_expired()

    def between(self, server: str, begin: float, end: float) -> list[SessionStep]:
        """Return the server's steps that overlap the period, oldest first."""
        with self._lock:
            names = list(self._classes)
            current = self._open.get(server)
            stored = [*self._steps, *([_sealed(server, current)] if current else [])]
            found = [
                SessionStep(one, names)
                for one in stored
                if one.server == server and one.at + CHUNK_S > begin and one.at <= end
            ]
        return sorted(found, key=lambda one: one.at)

    def texts(self, server: str) -> dict[int, str]:
        """Return normalized statements by digest, shortened and with unprintable characters escaped.

        They include the statements of other servers.
        """
        with self._lock:
            current = self._open.get(server)
            return self._texts | (current.texts if current else {})

    def oldest(self, server: str) -> float | None:
        """Return the Unix time at which a server's first step begins; None if it has no samples."""
        with self._lock:
            times = [one.at for one in self._steps if one.server == server]
            times += [one.at for name, one in self._open.items() if name == server]
        return min(times, default=None)

    @property
    def used_bytes(self) -> int:
        """Return the estimated size in bytes."""
        with self._lock:
            return self._bytes + self._open_bytes()

    def _row(self, shape: SharedValues) -> _Key:
        name = shape.kind or "other", shape.wait or "other"
        if name not in self._classes and len(self._classes) >= _MAX_CLASSES:
            name = _OTHER
        digest = int(shape.digest[:_DIGITS], 16) if shape.digest else UNKNOWN
        return self._classes.setdefault(name, len(self._classes)), digest, stack_id(shape.stack)

    def _text(self, digest: int, text: str | None) -> str | None:
        if text is None:
            return None
        return self._texts.get(digest) or sanitize.words(text[: 2 * _MAX_TEXT], _MAX_TEXT)

    def _step_at(self, server: str, at: float) -> _Open:
        """Return the step that begins at ``at``. If it is new, the previous step is complete: store it."""
        current = self._open.get(server)
        if current is None or current.at != at:
            if current is not None:
                self._append(_sealed(server, current), current.texts)
            current = self._open[server] = _Open(at)
        return current

    def _append(self, step: _Step, texts: Mapping[int, str]) -> None:
        self._steps.append(step)
        self._bytes += _size(step)
        for digest in set(step.digests):
            self._uses[digest] += 1
            if digest in texts and digest not in self._texts:
                self._texts[digest] = texts[digest]
                self._bytes += _text_bytes(texts[digest])
        self._limit()

    def _limit(self) -> None:
        """Drop the oldest steps beyond the limit. Shrink open steps if they use more than half of it."""
        half = self._most_bytes // 2
        if self._open_bytes() > half:
            for one in self._open.values():
                one.shrink()
        others = min(self._open_bytes(), half)
        while self._bytes + others > self._most_bytes:
            self._drop_oldest()

    def _open_bytes(self) -> int:
        return sum(one.used_bytes for one in self._open.values())

    def _drop_expired(self) -> None:
        """Drop old steps, and steps in the future, which were added before the clock was set back."""
        now = self._clock()
        while self._steps and abs(now - self._steps[0].at) > self._keep_s:
            self._drop_oldest()
        for server in [name for name, one in self._open.items() if abs(now - one.at) > self._keep_s]:
            del self._open[server]

    def _drop_oldest(self) -> None:
        step = self._steps.popleft()
        self._bytes -= _size(step)
        for digest in set(step.digests):
            self._uses[digest] -= 1
            if not self._uses[digest]:
                del self._uses[digest]
                if digest in self._texts:
                    self._bytes -= _text_bytes(self._texts.pop(digest))


def digest_number(text: str) -> int:
    """Convert the first 16 hexadecimal digits of a digest to a number.

    Raise ValueError if the text is shorter or not hexadecimal.
    """
    if len(text) < _DIGITS:
        raise ValueError(f"{text[:40]!r} is not a digest of at least {_DIGITS} digits")
    return int(text[:_DIGITS], 16)


def digest_text(number: int) -> str:
    """Return the first 16 digits of a digest."""
    return f"{number:0{_DIGITS}x}"


def _ranked(rows: Mapping[_Key, float]) -> list[tuple[_Key, float]]:
    return sorted(rows.items(), key=lambda one: -one[1])


def _without_stack(row: _Key) -> _Key:
    return row[0], row[1], RARE


def _without_statement(row: _Key) -> _Key:
    return row[0], OTHERS, RARE


def _sealed(server: str, step: _Open) -> _Step:
    rows = step.rows()
    return _Step(
        server,
        step.at,
        step.weight,
        step.snapshots,
        array("H", (row[0] for row, _ in rows)),
        array("Q", (row[1] for row, _ in rows)),
        array("q", (row[2] for row, _ in rows)),
        array("f", (seconds for _, seconds in rows)),
    )


def _text_bytes(text: str) -> int:
    return _TEXT_BYTES + len(text.encode())


def _size(step: _Step) -> int:
    return _STEP_BYTES + _ROW_BYTES * len(step.seconds)
