"""Record real stacks of a running server: ``python -m golden.record mysql-5.6.24 row-lock --pid 1234``.

Each new combination of stack, state, system call and kind of file is added to ``tests/golden/SERVER.json``
with the class it gets *now*. Read every added line before you commit it: the test trusts this file.
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

#: At most so many stacks of one class and workload: running threads have endless variety.
LIMIT = 12


def look(process: Process, pid: int, workload: str) -> list[Golden]:
    """All distinct stacks of one look."""
    seen = process.look()
    calls = descriptors.file_calls()
    kinds = descriptors.kinds(pid, {raw.argument for raw in seen.threads if raw.syscall in calls})
    stacks = {number: pack(stack) for number, stack in seen.stacks.items()}
    return [
        _golden(raw, stacks[raw.stack], kinds.get(raw.argument) if raw.syscall in calls else None, workload)
        for raw in seen.threads
    ]


def _golden(raw: RawThread, frames: tuple[str, ...], kind: str | None, workload: str) -> Golden:
    running = raw.state == "R" or raw.trust in ("on_cpu", "stale")
    name = descriptors.syscall_names().get(raw.syscall)
    stale = raw.trust == "stale"
    wait = default_classifier().classify(
        unpack(frames), comm=raw.comm, syscall=name, file=kind, running=running, stale=stale
    )
    return Golden(workload, wait, running, stale, raw.comm, name, kind, frames)


def record(server: str, workload: str, pid: int, *, looks: int, interval_s: float) -> int:
    """Add what is new to the server's file; returns how many stacks that were."""
    process = Process(pid)
    stacks = {item.key: item for item in read(server)}
    before = len(stacks)
    many: dict[str, int] = {}
    for _ in range(looks):
        for item in look(process, pid, workload):
            if item.key not in stacks and many.get(item.wait, 0) < LIMIT:
                many[item.wait] = many.get(item.wait, 0) + 1
                stacks[item.key] = item
        time.sleep(interval_s)
    write(server, list(stacks.values()))
    return len(stacks) - before


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server")
    parser.add_argument("workload")
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--looks", type=int, default=100)
    parser.add_argument("--interval", type=float, default=0.02)
    given = parser.parse_args()
    added = record(given.server, given.workload, given.pid, looks=given.looks, interval_s=given.interval)
    print(f"{added} new stacks of {given.server} under {given.workload}")


if __name__ == "__main__":
    main()
