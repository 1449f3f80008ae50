"""Test that the files of many hostile processes share one memory limit."""

from __future__ import annotations

import os
import subprocess
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from safety.hostile_elf import MIB, large_tables
from safety.test_hostile_files import read_by_core
from servers import Keeper

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Memory limit for the files of all processes, as in limits.rs.
ALL_BYTES: Final = 384 * MIB
_PROCESSES, _FILES = 10, 2
#: A C program that maps the files given as arguments as executable.
_MAPPING: Final = """
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
long log_sys[8];
int main(int count, char **arguments)
{
    for (int i = 1; i < count; i++)
        if (mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, open(arguments[i], O_RDONLY), 0) == MAP_FAILED)
            return 1;
    puts("ready");
    fflush(stdout);
    for (;;)
        pause();
}
"""


def compile_mapping(folder: Path) -> Path:
    """Compile the program; return its path."""
    (folder / "mapping.c").write_text(_MAPPING)
    program = folder / "mysqld"
    subprocess.run(["cc", "-o", program, folder / "mapping.c"], check=True)
    return program


@contextmanager
def running(*command: Path, uid: int | None = None) -> Iterator[int]:
    """Start a program and yield its pid once it has mapped its files."""
    with Keeper() as keeper, subprocess.Popen(command, stdout=subprocess.PIPE, user=uid) as process:
        keeper.watch(process.pid)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.kill()


def test_files_of_all_processes_have_one_limit(tmp_path: Path) -> None:
    program = compile_mapping(tmp_path)
    with ExitStack() as stack:
        pids = []
        for number in range(_PROCESSES):
            files = [tmp_path / f"{number}-{one}.so" for one in range(_FILES)]
            for file in files:
                file.write_bytes(large_tables())
                os.truncate(file, 64 * MIB)
            pids.append(stack.enter_context(running(program, *files)))
        report = read_by_core("crowd", ",".join(map(str, pids)))
    problems, again = report["answers"]
    limit = f"not read: the files of all processes exceed {ALL_BYTES} bytes of memory"
    refused = [problem for problem in problems if problem]
    assert any(problem.startswith(f"{tmp_path}/") for problem in refused)
    assert all(problem.endswith(f": {limit}") for problem in refused), refused
    assert report["grown"] < ALL_BYTES / MIB + 32, report
    assert again == [None] * len(again)
