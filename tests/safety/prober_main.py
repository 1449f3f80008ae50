"""Attach probes to a server and run commands from stdin: ``python -m safety.prober_main PID [CGROUP …]``."""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import Final

from innoscope.probes.attachment import Attachment
from innoscope.target.discover import find_one

FAMILIES: Final = frozenset({"redo", "fsync", "row_lock"})
_PIECE: Final = 1 << 20


def main(pid: int, *groups: str) -> None:
    for group in groups:
        (Path(group) / "cgroup.procs").write_text(str(os.getpid()))
    attachment = Attachment(find_one(pid), FAMILIES)
    attachment.attach()
    assert any(point.attached for point in attachment.points)
    print("attached", flush=True)

    def detach() -> None:
        while True:
            attachment.detach()
            attachment.attach()

    acts = {"detach": detach, "eat": eat, "bus": fault}
    for line in sys.stdin:
        threading.Thread(target=acts[line.strip()], daemon=True).start()
        print("began", flush=True)


def eat() -> None:
    """Allocate memory until the process is killed."""
    eaten: list[bytearray] = []
    while True:
        piece = bytearray(_PIECE)
        piece[:: mmap.PAGESIZE] = b"x" * len(range(0, _PIECE, mmap.PAGESIZE))
        eaten.append(piece)


def fault() -> None:
    """Read a mapped page beyond the end of a truncated file."""
    with tempfile.TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        page = mmap.mmap(file.fileno(), mmap.PAGESIZE, prot=mmap.PROT_READ)
        file.truncate(0)
        print(page[0])


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
