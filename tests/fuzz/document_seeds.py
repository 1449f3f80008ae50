"""Make seeds for the targets in document_targets.py, some of them from a running server."""

from __future__ import annotations

import contextlib
import gzip
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fuzz.document_targets import NAME
from fuzz.targets import LOADERS, json_bytes
from innoscope.daemon.protocol import stack_encoding
from innoscope.sampling.profile_history import Chunk, ClassifiedStack
from innoscope.sampling.recording import RecordingWriter
from innoscope.sampling.snapshot_history import ObservedStack, SnapshotSummary
from innoscope.toggles.journal import Journal
from unit.session_samples import START
from unit.snapshots import mixed
from unit.toggling import entry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers import Server

_TREE: Final = Path(__file__).resolve().parents[2]


def fixed() -> Iterator[tuple[str, bytes]]:
    """Yield the seeds that need no server."""
    for call in ("hello", "probes", "profiles", "samples"):
        yield "requests", json_bytes({"call": call})
    for call in ("profiles", "samples"):
        yield "requests", json_bytes({"call": call, "cursor": {NAME: 3, "other": 1 << 40}})
    ask = {"call": "snapshots", "server": NAME, "from": float(START), "to": START + 9.5}
    yield "requests", json_bytes(ask)
    yield "requests", json_bytes(ask | {"stacks": True})
    threads = mixed().threads
    stacks = {
        ClassifiedStack.of(one.wait, one.trust, one.frames): number for number, one in enumerate(threads, 1)
    }
    chunks = [
        Chunk(START, START + 60.0, 60, 4.5, stacks, 1),
        Chunk(START + 60.0, START + 120.0, 1, 0.1, {}, 0),
    ]
    yield "chunks", json_bytes(stack_encoding.encode_chunks(chunks))
    seen = [ObservedStack("client", stack.wait, stack.labels, 2, (4, 5)) for stack in stacks]
    summary = SnapshotSummary(float(START), {("client", "row_lock"): 2}, (6,), {"purge": (7,)})
    yield "snapshots", json_bytes(stack_encoding.encode_snapshots([summary], seen))
    yield from _recordings()
    yield "journal", _journal()
    names = [name for name, _ in LOADERS]
    yield "catalogs", bytes([names.index("servers.toml")]) + (_TREE / "packaging/servers.toml").read_bytes()


def of_a_server(server: Server) -> Iterator[tuple[str, bytes]]:
    """Yield the seeds that come from a running server."""
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW ENGINE INNODB STATUS")
        yield "status", "".join(row[2] for row in cursor.fetchall()).encode()
    command = [sys.executable, "-m", "innoscope.cli.main", "stacks", "--pid", str(server.pid), "--json"]
    yield "recording", b"\xff" + subprocess.run(command, check=True, capture_output=True).stdout


def _recordings() -> Iterator[tuple[str, bytes]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "one.rec")
        with RecordingWriter(path, interval_s=1.0) as recorder:
            recorder.write(mixed())
        content = path.read_bytes()
    yield "recording", b"\0" + content
    yield "recording", b"\0" + gzip.compress(content, mtime=0)
    yield "recording", b"\x80" + content


def _journal() -> bytes:
    """Return a journal with a change that was undone, and one whose result is not known."""
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder))
        for ident in ("0a1b2c3d", "4e5f6a7b"):
            journal.intend(entry(ident))
        journal.conclude("0a1b2c3d", "done")
        journal.note("0a1b2c3d", "the server is down")
        return journal.path.read_bytes()
