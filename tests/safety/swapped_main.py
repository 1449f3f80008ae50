"""``swapped_main.py TIMES SEED FOLDER``: change mapped files while the core reads them.

Each run starts a process that sleeps inside a library of FOLDER, and reads it with the core step by step.
Before each step, and continuously from another process, a mapped file is truncated, rewritten, replaced or
deleted. The script prints how many steps succeeded and failed. The test passes if the script survives.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from innoscope import _native

if TYPE_CHECKING:
    from collections.abc import Callable

#: Names of the mapped files. ``whole-NAME`` is the intact copy of each.
MAPPED = ("program", "libheld.so", "libheld.so.debug")


def spoil(folder: Path, chance: random.Random) -> None:
    """Change one of the mapped files at random. A running program cannot be written (ETXTBSY)."""
    name = chance.choice(MAPPED)
    path, whole = folder / name, folder / f"whole-{name}"
    size = whole.stat().st_size
    try:
        match chance.randrange(7):
            case 0:
                os.truncate(path, 0)
            case 1:
                os.truncate(path, chance.randrange(size))
            case 2:
                with path.open("r+b") as file:
                    file.seek(chance.randrange(size))
                    file.write(chance.randbytes(chance.randrange(1, 4096)))
            case 3:
                with path.open("r+b") as file:  # overwrite in place with the original content
                    file.write(whole.read_bytes())
            case 4:
                shutil.copy(whole, folder / "next")
                (folder / "next").rename(path)
            case 5:
                path.unlink()
            case 6:
                os.truncate(path, size * 4)
    except OSError:
        pass  # the file was deleted before, or is the running program


def spoil_all_the_time(folder: Path, seed: int) -> None:
    """Change files until the parent kills this process."""
    chance = random.Random(seed)  # noqa: S311
    while True:
        spoil(folder, chance)
        time.sleep(0.0005)


def steps(pid: int, folder: Path) -> list[Callable[[], object]]:
    """Return the steps of a run, in order: snapshots and other reads of the process or its files."""
    opened: dict[str, _native.Process | _native.CodeFile] = {}

    def open_process() -> None:
        opened["process"] = _native.Process(pid, debug_dirs=[str(folder)])

    def open_inlines() -> None:
        opened["process"] = _native.Process(pid, debug_dirs=[str(folder)], inlines=True)

    def snapshot() -> None:
        process = opened["process"]
        assert isinstance(process, _native.Process)
        process.take_snapshot()
        process.modules()

    def open_code() -> None:
        opened["code"] = _native.CodeFile(pid, "libheld", debug_dirs=[str(folder)])

    def functions() -> None:
        code = opened["code"]
        assert isinstance(code, _native.CodeFile)
        found = code.functions(["h", "m", "_"])
        code.references(found)

    return [
        open_process, snapshot, snapshot, open_code, functions, snapshot,
        lambda: _native.symbol_in_process(pid, ["main"]),
        lambda: _native.globals_in_process(pid, ["main", "held"], [str(folder)], {}),
        lambda: _native.elf_info(str(folder / "libheld.so")),
        lambda: _native.find_debug_file(str(folder / "libheld.so"), [str(folder)]),
        functions, open_inlines, snapshot,
    ]  # fmt: skip


def run(folder: Path, chance: random.Random, outcomes: Counter[str]) -> None:
    """Run all steps on one process."""
    for name in MAPPED:
        shutil.copy(folder / f"whole-{name}", folder / "next")
        (folder / "next").rename(folder / name)
    held = subprocess.Popen([folder / "program"], stdout=subprocess.PIPE)
    assert held.stdout is not None
    held.stdout.readline()
    command = [sys.executable, __file__, "spoil", str(chance.randrange(1 << 30)), str(folder)]
    spoiler = subprocess.Popen(command)
    try:
        for step in steps(held.pid, folder):
            spoil(folder, chance)
            try:
                step()
                outcomes["answered"] += 1
            except (OSError, _native.NativeError, KeyError) as error:
                outcomes[type(error).__name__] += 1
    finally:
        for child in (spoiler, held):
            child.kill()
            child.wait()
        held.stdout.close()


def main() -> None:
    """Do the requested number of runs, and print how many steps succeeded and how many failed, by error."""
    if sys.argv[1] == "spoil":
        spoil_all_the_time(Path(sys.argv[3]), int(sys.argv[2]))
    times, folder = int(sys.argv[1]), Path(sys.argv[3])
    chance = random.Random(int(sys.argv[2]))  # noqa: S311
    outcomes: Counter[str] = Counter()
    for _ in range(times):
        run(folder, chance, outcomes)
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main()
