"""Read and write incident files. ``zcat FILE | jq`` shows the contents.

A file is one gzip member, whose checksum detects damage, with one JSON object: ``{"innoscope_incident": 1,
…}``. Reading uses bounded memory, because files are untrusted. The standard library parses the JSON: msgspec
would reject a lone surrogate as malformed JSON, but codec.py reports it as a forbidden character.
"""

from __future__ import annotations

import gzip
import json
import os
import secrets
import stat
import time
import zlib
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

import innoscope
from innoscope.common import sanitize
from innoscope.common.errors import BadFile, CannotWrite
from innoscope.diagnose.incident.codec import DamagedValue, decode, encode, key_of
from innoscope.diagnose.incident.model import Capture, CaptureOrigin
from innoscope.target.proc import ProcFs
from innoscope.target.process_users import current_user

if TYPE_CHECKING:
    from pathlib import Path

    from innoscope.diagnose.evidence import Evidence

VERSION: Final = 1
#: Recommended file name suffix.
SUFFIX: Final = ".innoscope"
#: Maximum size of the compressed file in bytes.
MAX_FILE_BYTES: Final = 16 << 20
#: Maximum size of the JSON in bytes. The statements of a server with 10,000 threads take at most 40 MB.
MAX_BYTES: Final = 64 << 20
#: Maximum number of commas, opening brackets and opening braces in the JSON. Each parsed item takes about
#: 100 bytes of memory.
MAX_ITEMS: Final = 2_500_000
# Limits on the size of the evidence, because rules iterate over it many times. Evidence from 600 s reaches
# less than half of each limit.
#: Maximum length of each list, such as the lists of snapshots, readings and stacks.
_MOST: Final = 5_000
#: Maximum number of wait classes, summed over all snapshots.
_MOST_WAITS: Final = 200_000
#: Maximum number of metric values, summed over all readings.
_MOST_NUMBERS: Final = 500_000
#: Maximum number of rows in the results of SQL queries, plus statements.
_MOST_ROWS: Final = 200_000

_REMEDY: Final = "use an unmodified file written by `innoscope diagnose --save FILE`"


def capture_origin() -> CaptureOrigin:
    """Return the origin of a capture taken now by this process."""
    system = os.uname()
    by = current_user(ProcFs())
    return CaptureOrigin(innoscope.__version__, by, system.nodename, system.release, time.time())


def name_for(capture: Capture) -> str:
    """Return a file name such as ``mysql-4242-20261122T014500Z.innoscope``: flavour, pid and time (UTC)."""
    server, at = capture.evidence.server, time.gmtime(capture.taken.at)
    return f"{server['flavour']}-{server['pid']}-{time.strftime('%Y%m%dT%H%M%SZ', at)}{SUFFIX}"


def check_free(path: Path) -> None:
    """Raise CannotWrite if ``save`` would fail: the file exists, or the directory is missing or not writable.

    If ``path`` is a directory, only the directory is checked.
    """
    folder = path if path.is_dir() else path.absolute().parent
    if folder is not path and os.path.lexists(path):
        raise _already_exists(path)
    if not folder.is_dir():
        raise CannotWrite(f"cannot write {path}: no such directory", remedy=f"mkdir -p {path.parent}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise CannotWrite(
            f"cannot write {path}: permission denied in {folder}", remedy="use another directory"
        )


def save(path: Path, capture: Capture) -> None:
    """Write a file atomically with mode 0600. Raise CannotWrite if this fails, or if ``path`` exists."""
    data = _packed(capture)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            _give_name(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    except FileExistsError:
        raise _already_exists(path) from None
    except OSError as error:
        raise CannotWrite(f"cannot write {path}: {error.strerror}", remedy="choose another file") from error


def _give_name(partial: Path, path: Path) -> None:
    """Rename a file without replacing an existing one. Raise FileExistsError if there is one."""
    try:
        os.link(partial, path, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
        partial.replace(path)


def _already_exists(path: Path) -> CannotWrite:
    return CannotWrite(f"cannot write {path}: it already exists", remedy="choose another file, or remove it")


def _packed(capture: Capture) -> bytes:
    whole = {"innoscope_incident": VERSION, "innoscope": innoscope.__version__, "capture": encode(capture)}
    text = sanitize.dumps(whole, separators=(",", ":")).encode()
    data = gzip.compress(text, 6, mtime=0)
    if len(text) > MAX_BYTES or len(data) > MAX_FILE_BYTES or _items(text) > MAX_ITEMS:
        raise CannotWrite(
            f"cannot write the incident file: {len(text) >> 20} MiB exceed the limit",
            remedy="use a shorter --seconds",
        )
    return data


def load(path: Path) -> Capture:
    """Read an incident file. Raise only BadFile, regardless of the file's contents."""
    value = _parsed(path, _unpacked(path, _read(path)))
    if not isinstance(value, dict) or "innoscope_incident" not in value:
        raise _bad(path, "not an incident file")
    version = value["innoscope_incident"]
    if version != VERSION:
        raise BadFile(
            f"{path} has incident version {str(version)[:20]!r}; this innoscope reads version {VERSION}",
            remedy="read it with the version of innoscope that wrote it",
        )
    try:
        capture = decode(Capture, value.get("capture"))
    except (DamagedValue, RecursionError) as error:
        raise _bad(path, f"damaged: {error}") from error
    for evidence in (capture.evidence, capture.before):
        if evidence is not None and (much := _oversized_part(evidence)):
            raise _bad(path, f"damaged: too many {much}")
    return capture


def _oversized_part(evidence: Evidence) -> str | None:
    """Return the name of a part of the evidence that exceeds its limit, or None if there is none."""
    every = {key_of(one): getattr(evidence, one.name) for one in fields(evidence)}
    counts = {
        name: (len(value), _MOST)
        for name, value in every.items()
        if isinstance(value, tuple) and name != "statements"
    }
    counts["waits"] = (sum(len(snapshot.threads) for snapshot in evidence.snapshots), _MOST_WAITS)
    counts["numbers"] = (sum(len(reading.values) for reading in evidence.readings), _MOST_NUMBERS)
    counts["rows"] = (len(evidence.statements) + sum(map(len, evidence.answers.values())), _MOST_ROWS)
    return next((name for name, (count, most) in counts.items() if count > most), None)


def _read(path: Path) -> bytes:
    """Return the bytes of a regular file.

    Pipes and devices are rejected, because reading them could block.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise _bad(path, "not a regular file")
            if status.st_size > MAX_FILE_BYTES:
                raise _bad(path, f"larger than {MAX_FILE_BYTES >> 20} MiB")
            # Not MAX_FILE_BYTES: a buffer of that size for each small file would fragment the agent's heap.
            return file.read(status.st_size)
    except OSError as error:
        raise BadFile(f"cannot read {path}: {error.strerror}", remedy=f"ls -l {path}") from error


def _unpacked(path: Path, data: bytes) -> bytes:
    inflate = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        text = inflate.decompress(data, MAX_BYTES + 1)
    except zlib.error as error:
        raise _bad(path, "damaged" if data.startswith(b"\x1f\x8b") else "not an incident file") from error
    if len(text) > MAX_BYTES:
        raise _bad(path, f"contains more than {MAX_BYTES >> 20} MiB")
    if not inflate.eof:
        raise _bad(path, "truncated")
    if inflate.unused_data:
        raise _bad(path, "damaged: data after the end")
    return text


def _parsed(path: Path, text: bytes) -> Any:
    if _items(text) > MAX_ITEMS:
        raise _bad(path, f"contains more than {MAX_ITEMS:,} items")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _bad(path, "damaged: not JSON") from error


def _items(text: bytes) -> int:
    return sum(text.count(sign) for sign in (b",", b"[", b"{"))


def _bad(path: Path, why: str) -> BadFile:
    return BadFile(f"{path}: {why}", remedy=_REMEDY)
