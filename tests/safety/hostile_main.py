"""``python -m safety.hostile_main HOW SUBJECT``: make the Rust core read a hostile file or process.

Print one JSON object: ``answers``, ``seconds`` (only CPU time if the core has started child processes),
``grown`` (MiB of memory) and ``child`` (MiB of the largest child).
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from innoscope import _native
from innoscope.common.errors import InnoscopeError
from innoscope.metrics.collectors.memory import MemoryCollector
from innoscope.target.model import Target
from innoscope.target.proc import ProcFs
from safety.stopwatch import Stopwatch

if TYPE_CHECKING:
    from collections.abc import Callable


def file(path: str) -> list[object]:
    """Read everything that discovery, symbol packs and probes need from a file."""
    return [
        attempt(lambda: _native.elf_info(path).build_id),
        attempt(lambda: _native.elf_info(path).debuglink),
        attempt(lambda: _native.find_debug_file(path, [str(Path(path).parent)])),
        attempt(lambda: sorted(_native.symbol_in_file(path, ["server_version"]))),
        attempt(lambda: members(path)),
        attempt(lambda: len(_native.pack_payload(path, b"{}", b"{}"))),
    ]


def mapped_file(path: str) -> list[object]:
    """Map the file as code. Read everything that ``file`` reads, and what probes need from mapped code."""

    def references() -> object:
        counts = mapped.references(mapped.functions(["f"]))
        return counts and sum(counts)

    protection = mmap.PROT_READ | mmap.PROT_EXEC
    with (
        Path(path).open("rb") as opened,
        mmap.mmap(opened.fileno(), mmap.PAGESIZE, mmap.MAP_PRIVATE, protection),
    ):
        mapped = _native.CodeFile(os.getpid(), Path(path).name)
        return [*file(path), mapped.problem, attempt(references)]


def members(path: str) -> list[str]:
    """Return the members that were found, and the reasons for those that were not."""
    found = _native.members_in_file(path, ["log_sys.lsn"])
    return [] if found is None else [*found.found, *found.missing.values()]


def process(pid: str) -> list[object]:
    """Take two snapshots and list the functions of the executable."""

    opened = _native.Process(int(pid))

    def snapshot() -> object:
        raw = opened.take_snapshot()
        stacks = [[frame.function for frame in raw.stacks[thread.stack]] for thread in raw.threads]
        trusts = [thread.trust for thread in raw.threads]
        return [stacks, trusts, raw.notes, [module.problem for module in opened.modules()]]

    return [
        attempt(snapshot),
        attempt(snapshot),
        attempt(lambda: len(_native.CodeFile(int(pid)).functions(["m"]))),
    ]


def long_names(pid: str) -> list[object]:
    """Take two snapshots. Return the distinct function names, the number of empty stacks, and the notes."""
    return _named(_native.Process(int(pid)))


def _named(opened: _native.Process) -> list[object]:
    opened.take_snapshot()
    raw = opened.take_snapshot()
    names = {frame.function for stack in raw.stacks.values() for frame in stack}
    empty = sum(not raw.stacks[thread.stack] and thread.trust == "truncated" for thread in raw.threads)
    return [sorted(filter(None, names)), empty, raw.notes]


def many_of_long_names(pid: str) -> list[object]:
    """Open the process eight times, like eight servers. Return the results of ``long_names`` for each."""
    opened = [_native.Process(int(pid)) for _ in range(8)]
    return [_named(one) for one in opened]


def crowd(pids: str) -> list[object]:
    """Open all processes at once, close them, and open one again. Return the problems with the files."""
    opened = [_native.Process(int(pid)) for pid in pids.split(",")]
    problems = [module.problem for one in opened for module in one.modules()]
    opened.clear()
    again = _native.Process(int(pids.split(",")[-1]))
    return [problems, [module.problem for module in again.modules()]]


def memory(pid: str) -> list[object]:
    """Read a server's memory twice. Return both results and the CPU seconds of the second read."""
    collector = MemoryCollector(target_of(int(pid)), status=True, variables=True)
    first, began = attempt(lambda: len(collector.collect())), time.thread_time()
    return [first, attempt(lambda: len(collector.collect())), time.thread_time() - began]


def target_of(pid: int) -> Target:
    """Describe a process as discovery would describe a server."""
    return Target(
        pid=pid, start_time=ProcFs().stat(pid).start_time, flavour="mysql", version=(8, 0, 36),
        version_text="8.0.36", version_from="memory", executable=str(Path(f"/proc/{pid}/exe").readlink()),
        deleted=False, build_id=None, socket=None, port=None, datadir=None, threads=1, root="/",
        container=None, symbols="dynsym",
    )  # fmt: skip


def attempt(read: Callable[[], object]) -> object:
    """Return the result or the error."""
    try:
        return read()
    except (OSError, InnoscopeError, _native.NativeError) as error:
        return f"{type(error).__name__}: {error}"


def _memory() -> float:
    """Return the peak memory of this process in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def main() -> None:
    ways = {
        "file": file,
        "mapped_file": mapped_file,
        "process": process,
        "memory": memory,
        "crowd": crowd,
        "long_names": long_names,
        "many_of_long_names": many_of_long_names,
    }
    read = ways[sys.argv[1]]
    before, stopwatch, cpu = _memory(), Stopwatch(), time.process_time()
    answers = read(sys.argv[2])
    seconds, cpu, grown = stopwatch.seconds(), time.process_time() - cpu, _memory() - before
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    if of_children := children.ru_utime + children.ru_stime:
        seconds = cpu + of_children  # the time that the children waited for a CPU is unknown
    child = children.ru_maxrss / 1024
    print(json.dumps({"answers": answers, "seconds": seconds, "grown": grown, "child": child}))


if __name__ == "__main__":
    main()
