"""Write and read recordings: snapshots stored in a file, one per line.

The file is JSON Lines. The first line is a header, ``{"innoscope_recording": 1, …}``. Each further line is
one snapshot, the same document that ``innoscope stacks --format json`` prints (docs/json.md). Each line is
flushed, so a killed recorder leaves a readable file. If the name ends in ``.gz``, each line is a separate
gzip member: ``zcat`` can read the file, and a truncated file is readable up to its last complete line.

Measured on MySQL 5.6.24 with 1,036 threads, 60 snapshots: 85 MB plain, 1.3 MB with .gz (22 KB per snapshot).
Writing takes about 12 ms of CPU time per snapshot in either format.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import time
import zlib
from bisect import bisect_right
from collections import Counter
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Protocol, Self

import msgspec
from msgspec.structs import asdict

import innoscope
from innoscope.common import sanitize
from innoscope.common.errors import BadFile, CannotWrite
from innoscope.common.typed import decode_untrusted
from innoscope.sampling.model import Frame, Snapshot, Thread, Trust
from innoscope.sampling.render.json import document
from innoscope.target.model import Query, Target

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

VERSION = 1
MAX_LINE_BYTES = 256 << 20
_TAKEN_AT = re.compile(rb'"taken_at":\s?([0-9]+(?:\.[0-9]+)?)')
_WAIT = re.compile(rb'"wait":\s?"([^"\\]*)"')
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_CUT_OFF = "the last line is incomplete (the recorder was killed or the disk was full) and was ignored"


class _Lines(Protocol):
    """A file that is read line by line, whether compressed or not."""

    def readline(self, size: int, /) -> bytes:
        """Return at most ``size`` bytes of the next line."""
        ...


class RecordingWriter:
    """A writer of a recording. An existing file is never overwritten."""

    def __init__(self, path: Path, *, interval_s: float) -> None:
        """Create ``path``, readable by its owner only, and write the header.

        Raise CannotWrite if the file exists or cannot be created.
        """
        self.path = path
        self.snapshots = 0
        self._gzip = path.suffix == ".gz"
        try:
            self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
        except FileExistsError:
            raise CannotWrite(
                f"cannot write {path}: it exists", remedy="choose another file, or remove it"
            ) from None
        except OSError as error:
            raise CannotWrite(f"cannot write {path}: {error.strerror}") from error
        header = {
            "innoscope_recording": VERSION,
            "innoscope": innoscope.__version__,
            "started_at": round(time.time(), 3),
            "interval_s": interval_s,
        }
        self._write_line(_JSON.encode(header))

    def write(self, snapshot: Snapshot) -> None:
        """Append one snapshot and flush. Raise CannotWrite, for example if the disk is full."""
        self._write_line(_line(document(snapshot)))
        self.snapshots += 1

    def close(self) -> None:
        """Close the file. All lines were already flushed. Raise CannotWrite if closing fails."""
        try:
            self._file.close()
        except OSError as error:
            raise CannotWrite(f"cannot write {self.path}: {error.strerror}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_line(self, text: str) -> None:
        line = sanitize.json_text(text).encode() + b"\n"
        try:
            self._file.write(gzip.compress(line, 1, mtime=0) if self._gzip else line)
            self._file.flush()
        except OSError as error:
            raise CannotWrite(f"cannot write {self.path}: {error.strerror}") from error


def _line(value: dict[str, Any]) -> str:
    """Encode a document. Threads with the same stack share one list of frames, which is encoded only once."""
    texts: dict[int, str] = {}
    threads = []
    for thread in value["threads"]:
        frames = thread["frames"]
        text = texts.get(id(frames))
        if text is None:
            text = texts[id(frames)] = _JSON.encode(frames)
        rest = {name: item for name, item in thread.items() if name != "frames"}
        threads.append(f'{_JSON.encode(rest)[:-1]},"frames":{text}}}')
    value = {name: item for name, item in value.items() if name != "threads"}
    return f'{_JSON.encode(value)[:-1]},"threads":[{",".join(threads)}]}}'


class Recording:
    """A recording opened for reading. Each snapshot is parsed on demand.

    Opening reads the file once to build an index, and checks each line superficially.
    ``times`` lists the snapshots' times in Unix seconds.
    """

    def __init__(
        self, path: Path, *, allow_headerless: bool = False, progress: Callable[[int], None] | None = None
    ) -> None:
        """Read ``path``; call ``progress`` with the number of snapshots found so far.

        Raise BadFile if the file cannot be read or is not a recording.

        ``allow_headerless`` also accepts a file without a header: the output of ``innoscope stacks --json``.
        """
        self.path = path
        self.header: dict[str, Any] = {}
        self.notes: tuple[str, ...] = ()
        self.times: list[float] = []
        self.waits: list[dict[str, int]] = []
        self._lines: list[bytes] = []  # compressed: an hour's snapshots of 1,000 threads take gigabytes
        self._parser = _Parser()
        self._allow_headerless = allow_headerless
        try:
            with path.open("rb") as start:
                is_gzip = start.read(2) == b"\x1f\x8b"
            with path.open("rb") as raw, gzip.open(raw) if is_gzip else nullcontext(raw) as file:
                self._index(file, progress)
        except OSError as error:
            raise BadFile(
                f"cannot read {path}: {error.strerror or error}",
                remedy="record one with: innoscope top --record FILE",
            ) from error

    def __len__(self) -> int:
        return len(self.times)

    def snapshot(self, index: int) -> Snapshot:
        """Return snapshot number ``index``, from 0.

        Raise BadFile, with the line number, if it is malformed.
        """
        try:
            return self._parser.snapshot(zlib.decompress(self._lines[index]))
        except (OverflowError, ValueError) as error:
            line = index + (2 if self.header else 1)
            raise self._bad(line, f"not a snapshot: {error}") from error

    def at(self, moment: float) -> int:
        """Return the index of the last snapshot at or before ``moment`` (Unix time); 0 if there is none."""
        return max(0, bisect_right(self.times, moment) - 1)

    def _bad(self, line: int, why: str) -> BadFile:
        writers = "`innoscope stacks --json` or " if self._allow_headerless else ""
        return BadFile(
            f"{self.path}, line {line}: {why}",
            remedy=f"use an unmodified file written by {writers}`innoscope top --record FILE`",
        )

    def _index(self, file: _Lines, progress: Callable[[int], None] | None) -> None:
        number = 0
        while line := self._read_line(file, number + 1):
            number += 1
            if not line.endswith(b"\n") and not _is_object(line):
                self.notes = (_CUT_OFF,)
                break
            if number == 1 and not (self._allow_headerless and _TAKEN_AT.search(line)):
                self.header = self._read_header(line)
                continue
            self._add(line, number)
            if progress:
                progress(len(self))
        if not self.header and not self.times:
            raise self._bad(1, "no header: the file is empty or truncated")

    def _read_line(self, file: _Lines, number: int) -> bytes:
        try:
            line = file.readline(MAX_LINE_BYTES + 1)
        except EOFError:  # the gzip member is truncated
            self.notes = (_CUT_OFF,)
            return b""
        except gzip.BadGzipFile as error:
            if repr(b"\x1f") in str(error):  # truncated after the first byte of a member
                self.notes = (_CUT_OFF,)
                return b""
            raise self._bad(number, f"damaged: {error}") from error
        except zlib.error as error:
            raise self._bad(number, f"damaged: {error}") from error
        if len(line) > MAX_LINE_BYTES:
            raise self._bad(number, f"longer than {MAX_LINE_BYTES >> 20} MiB")
        return line

    def _read_header(self, line: bytes) -> dict[str, Any]:
        try:
            header = decode_untrusted(line, dict[str, Any])
        except ValueError:
            header = {}
        if "innoscope_recording" not in header:
            if self._allow_headerless:
                raise self._bad(1, "not a dump, a recording or an incident file")
            raise self._bad(1, "not an Innoscope recording")
        version = header["innoscope_recording"]
        if version != VERSION:
            raise BadFile(
                f"{self.path} has recording version {version}; this innoscope reads version {VERSION}",
                remedy="read it with the version of innoscope that wrote it",
            )
        return header

    def _add(self, line: bytes, number: int) -> None:
        taken_at = _TAKEN_AT.search(line, 0, 65536) or _TAKEN_AT.search(line)
        if taken_at is None or not line.startswith(b"{") or not line.rstrip().endswith(b"}"):
            raise self._bad(number, "damaged: not a snapshot")
        self.times.append(float(taken_at[1]))
        counts = Counter(_WAIT.findall(line))
        self.waits.append({name.decode("utf-8", "replace"): count for name, count in counts.items()})
        self._lines.append(zlib.compress(line, 1))


def _is_object(line: bytes) -> bool:
    try:
        decode_untrusted(line, dict[str, Any])
    except ValueError:
        return False
    return True


class _Frame(msgspec.Struct, frozen=True):
    function: str | None
    module: str
    offset: int
    inlined: bool = False
    kernel: bool = False


class _Query(msgspec.Struct, frozen=True):
    connection_id: int
    user: str | None = None
    host: str | None = None
    db: str | None = None
    command: str | None = None
    state: str | None = None
    seconds: int | None = None
    digest_text: str | None = None


class _Thread(msgspec.Struct, frozen=True):
    tid: int
    comm: str
    trust: Trust
    wait: str
    frames: tuple[_Frame, ...]
    ns_tid: int | None = None
    state: str = "?"
    syscall: int | None = None
    query: _Query | None = None


class _Target(msgspec.Struct, frozen=True):
    """A server. Recordings of earlier versions lack some fields, whose defaults mean "unknown"."""

    pid: int
    flavour: str
    start_time: int = 0
    version: tuple[int, ...] = ()
    version_text: str = "unknown"
    version_from: str = "unknown"
    executable: str = ""
    deleted: bool = False
    build_id: str | None = None
    socket: str | None = None
    port: int | None = None
    datadir: str | None = None
    threads: int = 0
    root: str = "/"
    container: str | None = None
    symbols: str = "none"


class _Document(msgspec.Struct, frozen=True):
    """A snapshot in schema 1 (docs/json.md). Unknown keys are ignored."""

    schema: int
    target: _Target
    method: str
    taken_at: float
    duration_ms: float
    threads: list[_Thread]
    notes: tuple[str, ...] = ()


class _Parser:
    """A parser of schema 1 documents. Equal frames or stacks become one object, as in ``Engine``."""

    def __init__(self) -> None:
        self._frames: dict[_Frame, Frame] = {}
        self._stacks: dict[tuple[_Frame, ...], tuple[Frame, ...]] = {}

    def snapshot(self, line: bytes) -> Snapshot:
        """Parse one line. Raise ValueError or OverflowError if it is malformed."""
        value = decode_untrusted(line, _Document)
        if value.schema != 1:
            raise ValueError(f"schema {value.schema}; this innoscope reads schema 1")
        return Snapshot(
            target=Target(**asdict(value.target)),
            method=value.method,
            taken_at=value.taken_at,
            duration_ms=value.duration_ms,
            threads=tuple([self._thread(item) for item in value.threads]),
            notes=value.notes,
        )

    def _thread(self, item: _Thread) -> Thread:
        return Thread(
            tid=item.tid,
            ns_tid=item.tid if item.ns_tid is None else item.ns_tid,
            comm=item.comm,
            state=item.state,
            trust=item.trust,
            wait=item.wait,
            frames=self._stack(item.frames),
            syscall=item.syscall,
            query=None if item.query is None else Query(**asdict(item.query)),
        )

    def _stack(self, items: tuple[_Frame, ...]) -> tuple[Frame, ...]:
        if items not in self._stacks:
            self._stacks[items] = tuple([self._frame(item) for item in items])
        return self._stacks[items]

    def _frame(self, item: _Frame) -> Frame:
        if item not in self._frames:
            self._frames[item] = Frame(item.function, item.module, item.offset, item.inlined, item.kernel)
        return self._frames[item]
