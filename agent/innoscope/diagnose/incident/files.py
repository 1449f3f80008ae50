"""Incident files: ``zcat FILE | jq`` shows all that is in one.

One gzip member, whose checksum tells damage, with one JSON object: ``{"innoscope_incident": 1, …}``.
A file is read in bounded memory, whoever wrote it.
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
from innoscope.diagnose.incident.codec import Damaged, decode, encode
from innoscope.diagnose.incident.model import Capture, Taken
from innoscope.target.proc import ProcFs
from innoscope.target.users import current_user

if TYPE_CHECKING:
    from pathlib import Path

    from innoscope.diagnose.evidence import Evidence

VERSION: Final = 1
#: What a name should end with.
SUFFIX: Final = ".innoscope"
#: Of the file, and of the JSON in it. A server with 10,000 threads has 40 MB of statements at the most.
MAX_FILE_BYTES: Final = 16 << 20
MAX_BYTES: Final = 64 << 20
#: Brackets and commas in the JSON: each item takes a hundred bytes or so when it is parsed.
MAX_ITEMS: Final = 2_500_000
#: Of one evidence, since rules go through all of it over and over: looks, readings, stacks, …; wait classes
#: of all looks; numbers of all readings; rows of the server's answers. 600 s are below half of each.
_MOST: Final = 5_000
_MOST_WAITS: Final = 200_000
_MOST_NUMBERS: Final = 500_000
_MOST_ROWS: Final = 200_000

_REMEDY: Final = "this needs a file of `innoscope diagnose --save FILE`, unchanged"


def taken() -> Taken:
    """Us, here and now."""
    system = os.uname()
    by = current_user(ProcFs())
    return Taken(innoscope.__version__, by, system.nodename, system.release, time.time())


def name_for(capture: Capture) -> str:
    """A name for a file of it, ``mysql-4242-20261122T014500Z.innoscope``: by flavour, pid and time (UTC)."""
    server, at = capture.evidence.server, time.gmtime(capture.taken.at)
    return f"{server['flavour']}-{server['pid']}-{time.strftime('%Y%m%dT%H%M%SZ', at)}{SUFFIX}"


def check_free(path: Path) -> None:
    """Raise CannotWrite now if ``save`` would: the name is taken, no such folder, no right to write there.

    A folder stands for some file in it.
    """
    folder = path if path.is_dir() else path.absolute().parent
    if folder is not path and os.path.lexists(path):
        raise _taken_already(path)
    if not folder.is_dir():
        raise CannotWrite(f"cannot write {path}: there is no such folder", remedy=f"mkdir -p {path.parent}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise CannotWrite(f"cannot write {path}: no right to write in {folder}", remedy="name another folder")


def save(path: Path, capture: Capture) -> None:
    """Write the file, readable by its owner only: whole or not at all, never over another. CannotWrite."""
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
        raise _taken_already(path) from None
    except OSError as error:
        raise CannotWrite(f"cannot write {path}: {error.strerror}", remedy="name another file") from error


def _give_name(partial: Path, path: Path) -> None:
    """As rename(2), but never over what is there: FileExistsError."""
    try:
        os.link(partial, path, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
        partial.replace(path)


def _taken_already(path: Path) -> CannotWrite:
    return CannotWrite(f"{path} is there already", remedy="name another file or remove it")


def _packed(capture: Capture) -> bytes:
    whole = {"innoscope_incident": VERSION, "innoscope": innoscope.__version__, "capture": encode(capture)}
    text = sanitize.dumps(whole, separators=(",", ":")).encode()
    data = gzip.compress(text, 6, mtime=0)
    if len(text) > MAX_BYTES or len(data) > MAX_FILE_BYTES or _items(text) > MAX_ITEMS:
        raise CannotWrite(
            f"the incident is too big for a file: {len(text) >> 20} MiB", remedy="look for less long"
        )
    return data


def load(path: Path) -> Capture:
    """Read a file. Whatever is in it, all that it raises is BadFile."""
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
    except (Damaged, RecursionError) as error:
        raise _bad(path, f"damaged: {error}") from error
    for evidence in (capture.evidence, capture.before):
        if evidence is not None and (much := _too_much(evidence)):
            raise _bad(path, f"damaged: too many {much}")
    return capture


def _too_much(evidence: Evidence) -> str | None:
    """Of what there is more than any server makes us see."""
    every = {one.name: getattr(evidence, one.name) for one in fields(evidence)}
    counts = {
        name: (len(value), _MOST)
        for name, value in every.items()
        if isinstance(value, tuple) and name != "statements"
    }
    counts["waits"] = (sum(len(look.threads) for look in evidence.looks), _MOST_WAITS)
    counts["numbers"] = (sum(len(snapshot.values) for snapshot in evidence.snapshots), _MOST_NUMBERS)
    counts["rows"] = (len(evidence.statements) + sum(map(len, evidence.answers.values())), _MOST_ROWS)
    return next((name for name, (count, most) in counts.items() if count > most), None)


def _read(path: Path) -> bytes:
    """The bytes of a regular file; a pipe or a device could keep us waiting."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise _bad(path, "not a regular file")
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise BadFile(f"cannot read {path}: {error.strerror}", remedy=f"ls -l {path}") from error
    if len(data) > MAX_FILE_BYTES:
        raise _bad(path, f"larger than {MAX_FILE_BYTES >> 20} MiB")
    return data


def _unpacked(path: Path, data: bytes) -> bytes:
    inflate = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        text = inflate.decompress(data, MAX_BYTES + 1)
    except zlib.error as error:
        raise _bad(path, "damaged" if data.startswith(b"\x1f\x8b") else "not an incident file") from error
    if len(text) > MAX_BYTES:
        raise _bad(path, f"it holds more than {MAX_BYTES >> 20} MiB")
    if not inflate.eof:
        raise _bad(path, "cut off")
    if inflate.unused_data:
        raise _bad(path, "damaged: something follows the end")
    return text


def _parsed(path: Path, text: bytes) -> Any:
    if _items(text) > MAX_ITEMS:
        raise _bad(path, f"it holds more than {MAX_ITEMS:,} items")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _bad(path, "damaged: not JSON") from error


def _items(text: bytes) -> int:
    return sum(text.count(sign) for sign in (b",", b"[", b"{"))


def _bad(path: Path, why: str) -> BadFile:
    return BadFile(f"{path}: {why}", remedy=_REMEDY)
