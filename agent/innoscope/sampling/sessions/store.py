"""Write the history of all servers to files, within limits of size and age."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

from innoscope._native import HistoryHour, NativeError, history_check, history_merge
from innoscope.common import sanitize
from innoscope.common.errors import BadFile, CannotWrite
from innoscope.common.folders import sync
from innoscope.common.typed import decode_json
from innoscope.sampling.sessions import files
from innoscope.sampling.sessions.files import HIDDEN, HOUR_S, TABLES, HistoryPart
from innoscope.sampling.sessions.model import Batch, SharedValues, stack_id

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from typing import BinaryIO

_log = logging.getLogger(__name__)

_US: Final = 1_000_000
#: Seconds between the end of an hour and the merging of its parts, because samples may arrive late.
GRACE_S: Final = 120.0
#: Minimum number of seconds between a failed write and the retry.
RETRY_S: Final = 30.0
#: The clock was stepped if it has moved by more than this many seconds relative to the monotonic clock.
_STEP_S: Final = 60.0
#: Seconds that must pass without a clock step before parts may be removed because of their age.
_STEADY_S: Final = 3_600.0
#: Mode of directories.
_FOLDER_MODE: Final = 0o750
#: Mode of files, as in agent/native/src/history/file.rs.
_FILE_MODE: Final = 0o640
#: The file that a writer locks.
_LOCK: Final = ".lock"
#: The file with a part's cursor.
_CURSOR: Final = "cursor.json"
#: Maximum size of the cursor file in bytes.
_MAX_CURSOR_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class HistoryLimits:
    """The limits of the history and its parts.

    A part is written after ``part_s`` seconds, or earlier if it reaches ``part_rows`` or ``part_bytes``.
    """

    keep_s: float = 7 * 86_400.0
    most_bytes: int = 2 << 30
    part_s: float = 300.0
    part_rows: int = 1 << 16
    part_bytes: int = 8 << 20


@dataclass(slots=True)
class Counts:
    """Totals since the start. ``failure`` is the reason why the last attempt failed; None if it succeeded."""

    rows: int = 0
    lost_rows: int = 0
    failures: int = 0
    bytes: int = 0
    removed: int = 0
    failure: str | None = None


class HistoryStore:
    """A writer of the history to a directory, which it locks. Not thread-safe. Call ``prepare`` first.

    ``cursor`` is stored with the samples. Before adding samples, set it to the position after them.
    ``on_step`` is called before each change on disk, with the name of the change.
    """

    def __init__(
        self,
        folder: Path,
        bounds: HistoryLimits,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        on_step: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.folder = folder
        self.counts = Counts()
        self.cursor: dict[str, int] = {}
        self._bounds = bounds
        self._clock, self._monotonic, self._step = clock, monotonic, on_step
        self._open: dict[int, HistoryHour] = {}
        self._next = 1
        self._due = monotonic() + bounds.part_s
        self._retry_at = 0.0
        self._offset = clock() - monotonic()
        self._steady_since = monotonic()
        self._damaged: set[Path] = set()
        self._lock: BinaryIO | None = None

    def prepare(self) -> None:
        """Create and lock the directory, remove what a killed writer left behind, and restore ``cursor``.

        Raise CannotWrite if this fails, or if another writer has locked the directory.
        """
        try:
            self.folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
            self._lock_folder()
            for path in self.folder.iterdir():
                if path.name.startswith(HIDDEN) and path.is_dir():
                    shutil.rmtree(path)
            parts = files.all_parts(self.folder)
            self._next = max((part.last for part in parts), default=0) + 1
            for part in files.replaced(parts):
                self._remove(part)
            if parts:
                self.cursor = _cursor_of(max(parts, key=lambda part: part.last))
            self.counts.bytes = sum(part.bytes for part in files.all_parts(self.folder))
        except OSError as error:
            raise CannotWrite(
                f"cannot write the history to {self.folder}: {error.strerror}",
                remedy="history.directory in agent.toml must be a separate directory, writable for the agent",
            ) from error

    def _lock_folder(self) -> None:
        """Lock the directory until this process exits. Raise OSError if another process has locked it."""
        if self._lock is None:
            lock = (self.folder / _LOCK).open("ab")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                lock.close()
                raise OSError(error.errno, "another agent writes to it") from error
            self._lock = lock

    def add(self, server: str, batch: Batch) -> None:
        """Add samples, and write them if their number or size reaches the limit of a part.

        All text is sanitized, because any program may read the files.
        """
        server, batch = sanitize.line(server), _sanitized(batch)
        shapes = [(shape[:-1], stack_id(shape.stack)) for shape in batch.shapes]
        by_hour = groupby(batch.snapshots, key=lambda one: one.at // (HOUR_S * _US))
        for hour, group in by_hour:
            snapshots = list(group)
            store = self._open.setdefault(hour, HistoryHour())
            rows = [
                (one.at, one.weight, one.tids, one.shapes, one.connections, one.blockers) for one in snapshots
            ]
            store.add(server, shapes, rows)
            for number in {number for one in snapshots for number in one.shapes}:
                store.add_stack(shapes[number][1], batch.shapes[number].stack)
                for digest in (batch.shapes[number].digest, batch.shapes[number].blocker_digest):
                    if digest is not None and digest in batch.digests:
                        store.add_digest(digest, batch.digests[digest])
            if self._is_full(store):
                self._write_or_drop(hour)

    def tick(self) -> None:
        """Write parts that are due, and merge the parts of hours that have ended.

        Remove parts that are too old, and the oldest parts while the history is too large.
        """
        now, steady = self._clock(), self._monotonic()
        if abs(now - steady - self._offset) > _STEP_S:
            self._steady_since = steady
        self._offset = now - steady
        recent = {int(now // HOUR_S), int((now - GRACE_S) // HOUR_S)}
        ended = [hour for hour in self._open if hour not in recent]
        if steady < self._due and not ended:
            return
        for hour in ended if steady < self._due else list(self._open):
            self._write_or_drop(hour)
            if hour not in recent and self._open[hour].empty:
                del self._open[hour]
        if steady >= self._due:
            self._due = steady + self._bounds.part_s
        self._maintain(recent)

    def close(self) -> None:
        """Write all samples that are not in a file yet."""
        for hour in list(self._open):
            self._write_or_drop(hour)

    def _is_full(self, hour: HistoryHour) -> bool:
        return hour.rows >= self._bounds.part_rows or hour.used_bytes >= self._bounds.part_bytes

    def _write_or_drop(self, hour: int) -> None:
        """Write an hour's samples. If that fails, keep them up to the limit of a part, then drop them."""
        store = self._open[hour]
        if store.empty:
            return
        try:
            if self._monotonic() >= self._retry_at:
                self._write(hour, store)
                self.counts.failure = None
                return
        except (OSError, NativeError) as error:
            self._failed("cannot write the history", error)
            self._retry_at = self._monotonic() + RETRY_S
        if self._is_full(store):
            self.counts.lost_rows += store.rows
            store.clear(written=False)

    def _write(self, hour: int, store: HistoryHour) -> None:
        number, self._next = self._next, self._next + 1
        partial = self._partial(files.name(hour, number, number))
        try:
            self._step("write")
            store.write(partial)
            self._write_cursor(partial)
            self._publish(partial)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        self.counts.rows += store.rows
        store.clear(written=True)

    def _write_cursor(self, partial: Path) -> None:
        with (partial / _CURSOR).open("w", encoding="ascii") as file:
            os.fchmod(file.fileno(), _FILE_MODE)
            json.dump(self.cursor, file)
            file.flush()
            os.fsync(file.fileno())

    def _maintain(self, recent: set[int]) -> None:
        try:
            self._expire()
            by_hour: defaultdict[int, list[HistoryPart]] = defaultdict(list)
            for part in files.live_parts(self.folder):
                by_hour[part.hour].append(part)
            for hour in by_hour.keys() - recent:
                for run in self._runs(by_hour[hour]):
                    if len(run) > 1:
                        self._merge(run)
            self._expire()
        except (OSError, NativeError) as error:
            self._failed("cannot maintain the history", error)

    def _runs(self, parts: Sequence[HistoryPart]) -> list[list[HistoryPart]]:
        """Split the parts of an hour at damaged ones, which cannot be merged."""
        if len(parts) == 1:
            return []
        runs: list[list[HistoryPart]] = [[]]
        for part in parts:
            if self._is_valid(part):
                runs[-1].append(part)
            else:
                runs.append([])
        return runs

    def _is_valid(self, part: HistoryPart) -> bool:
        """Return whether all files of a part can be read. A damaged part is reported once."""
        if part.path in self._damaged:
            return False
        try:
            for table in TABLES:
                if part.file(table).exists():
                    history_check(table, part.file(table))
        except (OSError, NativeError) as error:
            self._failed("damaged history", error, part.path.name)
            self._damaged.add(part.path)
            return False
        return True

    def _merge(self, parts: Sequence[HistoryPart]) -> None:
        """Replace parts of an hour with one part that contains all their rows."""
        partial = self._partial(files.name(parts[0].hour, parts[0].first, parts[-1].last))
        try:
            for table in TABLES:
                inputs = [part.file(table) for part in parts if part.file(table).exists()]
                if inputs:
                    self._step("merge")
                    history_merge(table, inputs, partial / f"{table}.parquet")
            with suppress(FileNotFoundError):
                shutil.copy(parts[-1].path / _CURSOR, partial / _CURSOR)
            durable = self._publish(partial)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        if durable:
            for part in parts:
                self._remove(part)

    def _partial(self, name: str) -> Path:
        partial = self.folder / f"{HIDDEN}{name}"
        shutil.rmtree(partial, ignore_errors=True)
        self._step("create")
        partial.mkdir(mode=_FOLDER_MODE)
        return partial

    def _publish(self, partial: Path) -> bool:
        """Rename a complete directory, which makes it valid.

        Return whether the new name was synced to disk.
        """
        sync(partial)
        self._step("rename")
        partial.rename(self.folder / partial.name.removeprefix(HIDDEN))
        self._step("sync")
        try:
            sync(self.folder)
        except OSError as error:  # the samples must not be written again
            self._failed("cannot write the history", error)
            return False
        return True

    def _remove(self, part: HistoryPart) -> None:
        gone = self.folder / f"{HIDDEN}{part.path.name}.removed"
        self._step("hide")
        part.path.rename(gone)
        self._step("remove")
        shutil.rmtree(gone)

    def _expire(self) -> None:
        """Remove parts that are too old, then the oldest parts while the history is too large."""
        parts = files.all_parts(self.folder)
        sizes = {part: _size(part) for part in parts}
        total = sum(sizes.values())
        ends = _ends(parts)
        steady = self._monotonic() - self._steady_since >= _STEADY_S
        for part in parts:
            is_old = steady and ends[part] < self._clock() - self._bounds.keep_s
            if is_old or total > self._bounds.most_bytes:
                self._remove(part)
                self._damaged.discard(part.path)
                self.counts.removed += 1
                total -= sizes[part]
        self.counts.bytes = total

    def _failed(self, what: str, error: Exception, name: str = "") -> None:
        why = str(error.args[-1]) if isinstance(error, NativeError) else str(error)
        if why != self.counts.failure:
            _log.warning(what, extra={"reason": why, "folder": str(self.folder / name)})
        self.counts.failures += 1
        self.counts.failure = why


def _sanitized(batch: Batch) -> Batch:
    """Return the samples with sanitized texts and functions. Equal texts remain equal."""
    shapes = [
        SharedValues._make(
            (*(text and sanitize.line(text) for text in shape[:-1]), tuple(map(sanitize.line, shape.stack)))
        )
        for shape in batch.shapes
    ]
    return Batch(
        shapes, batch.snapshots, {digest: sanitize.line(text) for digest, text in batch.digests.items()}
    )


def _cursor_of(part: HistoryPart) -> dict[str, int]:
    """Return the cursor of a part; empty if the cursor is missing or malformed."""
    path = part.path / _CURSOR
    with suppress(OSError, BadFile), path.open("rb") as file:
        return decode_json(file.read(_MAX_CURSOR_BYTES), dict[str, int], path)
    return {}


def _ends(parts: Sequence[HistoryPart]) -> dict[HistoryPart, float]:
    """Return the Unix time at which the hour of each part ended. The parts are in the order of writing.

    A part cannot be younger than those written later. Therefore, if the clock was ahead when a part was
    written, the hours of later parts limit its end.
    """
    ends, end = {}, float("inf")
    for part in reversed(parts):
        end = min(end, (part.hour + 1) * float(HOUR_S))
        ends[part] = end
    return ends


def _size(part: HistoryPart) -> int:
    with suppress(OSError):
        return part.bytes
    return 0
