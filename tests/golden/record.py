"""Record real stacks of a running server: ``python -m golden.record mysql-5.6.24 row-lock --pid 1234``.

Each new combination of stack, state, system call and kind of file is added to ``tests/golden/SERVER.json``
with its *current* class. Check every added line before you commit it, because the test relies on this file.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from golden.store import Golden, pack, read, unpack, write
from innoscope._native import Process
from innoscope.sampling import descriptors
from innoscope.sampling.classify import default_classifier

if TYPE_CHECKING:
    from innoscope._native import RawThread

#: Maximum number of stacks of one class and workload, because stacks of running threads vary endlessly.
LIMIT = 12


def snapshot(process: Process, pid: int, workload: str) -> list[Golden]:
    """Return all stacks of one snapshot."""
    taken = process.take_snapshot()
    calls = descriptors.file_calls()
    kinds = descriptors.kinds(pid, {raw.argument for raw in taken.threads if raw.syscall in calls})
    stacks = {number: pack(stack) for number, stack in taken.stacks.items()}
    return [
        _golden(raw, stacks[raw.stack], kinds.get(raw.argument) if raw.syscall in calls else None, workload)
        for raw in taken.threads
    ]


def _golden(raw: RawThread, frames: tuple[str, ...], kind: str | None, workload: str) -> Golden:
    running = raw.state == "R" or raw.trust in ("on_cpu", "stale")
    name = descriptors.syscall_names().get(raw.syscall)
    stale = raw.trust == "stale"
    wait = default_classifier().classify(
        unpack(frames), comm=raw.comm, syscall=name, file=kind, running=running, stale=stale
    )
    return Golden(workload, wait, running, stale, raw.comm, name, kind, frames)


def record(server: str, workload: str, pid: int, *, snapshots: int, interval_s: float) -> int:
    """Add new stacks to the server's file; return their number."""
    process = Process(pid)
    stacks = {item.key: item for item in read(server)}
    before = len(stacks)
    many: dict[str, int] = {}
    for _ in range(snapshots):
        for item in snapshot(process, pid, workload):
            if item.key not in stacks and many.get(item.wait, 0) < LIMIT:
                many[item.wait] = many.get(item.wait, 0) + 1
                stacks[item.key] = item
        time.sleep(interval_s)
    write(server, list(stacks.values()))
    return len(stacks) - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server")
    parser.add_argument("workload")
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--snapshots", type=int, default=100)
    parser.add_argument("--interval", type=float, default=0.02)
    given = parser.parse_args()
    added = record(
        given.server, given.workload, given.pid, snapshots=given.snapshots, interval_s=given.interval
    )
    print(f"{added} new stacks of {given.server} under {given.workload}")


if __name__ == "__main__":
    main()
