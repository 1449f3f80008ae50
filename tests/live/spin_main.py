"""Take snapshots of the spinner and check each stack, in a separate process, because ``deny`` is irrevocable.

Arguments: pid, shared file, threads, snapshots, and ``deny`` to forbid perf events. Prints counts as JSON:
``{"exact right": 500, "stale wrong": 3, ...}``.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import struct
import sys
import time
from collections import Counter
from pathlib import Path

from innoscope._native import Process, RawSnapshot

_PERF_EVENT_OPEN = 298
_EACCES = 13
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_RET_ERRNO, _RET_ALLOW = 0x00050000, 0x7FFF0000

#: Maximum seconds for a thread to enter the next phase, on a busy machine.
_PATIENCE_S = 0.02


def deny_perf_events() -> None:
    """Make perf_event_open fail in this process with EACCES (a seccomp filter, x86-64)."""
    program = b"".join(
        struct.pack("HBBI", *instruction)
        for instruction in (
            (0x20, 0, 0, 0),  # load the system call's number
            (0x15, 0, 1, _PERF_EVENT_OPEN),  # if it is not perf_event_open, skip the next instruction
            (0x06, 0, 0, _RET_ERRNO | _EACCES),
            (0x06, 0, 0, _RET_ALLOW),
        )
    )
    buffer = ctypes.create_string_buffer(program)
    filters = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 4, ctypes.addressof(buffer)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, filters, 0, 0
    ):
        raise OSError(ctypes.get_errno(), "prctl")


class Judge:
    """A judge that sets the spinner's phase, takes a snapshot, and counts right and wrong stacks."""

    def __init__(self, pid: int, shared: mmap.mmap, threads: int) -> None:
        self._process = Process(pid, method="bpf")
        self._words = memoryview(shared).cast("I")
        self._count = threads
        self._tids = sorted(tid for tid in map(int, _names(pid)) if tid != pid)
        self.seen: Counter[str] = Counter()

    def round(self, number: int) -> None:
        """Set the next phase; take a snapshot as soon as one thread has reached it.

        First wait until all threads have published the last phase. Otherwise, a thread that was preempted
        just before it published a phase could still be in that phase after the next change.
        """
        while set(self._phases()) != {self._words[0]}:
            time.sleep(0.001)
        wanted = number % 4
        self._words[0] = wanted
        deadline = time.monotonic() + _PATIENCE_S
        while wanted not in self._phases() and time.monotonic() < deadline:
            pass
        phases = self._phases()
        snapshot = self._process.take_snapshot()
        for raw in snapshot.threads:
            if raw.tid in self._tids:
                self._judge(snapshot, raw.trust, raw.stack, {phases[self._tids.index(raw.tid)], wanted})

    def close(self) -> None:
        self._words.release()

    def _phases(self) -> list[int]:
        return list(self._words[2 : 2 + self._count])

    def _judge(self, snapshot: RawSnapshot, trust: str, stack: int, possible: set[int]) -> None:
        functions = [frame.function for frame in snapshot.stacks[stack]]
        phases = [name for name in functions if name and name.startswith("phase_")]
        # between two phases, a thread is in spinning() alone for a few nanoseconds
        right = "spinning" in functions and all(name in {f"phase_{n}" for n in possible} for name in phases)
        fresh = right and (bool(phases) or len(possible) == 2)
        self.seen[f"{trust} {'right' if fresh else 'wrong'}"] += 1


def _names(pid: int) -> list[str]:
    return [task.name for task in Path(f"/proc/{pid}/task").iterdir()]


def main() -> None:
    pid, path, threads, snapshots = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    if sys.argv[5:] == ["deny"]:
        deny_perf_events()
    with Path(path).open("r+b") as file, mmap.mmap(file.fileno(), 4096) as shared:
        judge = Judge(pid, shared, threads)
        for number in range(1, snapshots + 1):
            judge.round(number)
            time.sleep(0.005)
        judge.close()
        print(json.dumps(judge.seen))


if __name__ == "__main__":
    main()
