"""Mapped files that are truncated, rewritten, replaced and deleted between any two steps: no crash."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from innoscope import _native
from safety.contained import installed_in
from scale import count
from servers import Server

TIMES = count(quick=30, full=1000)
_MAIN = Path(__file__).with_name("swapped_main.py")
_SECONDS_EACH = 10

_LIBRARY = """
static inline __attribute__((always_inline)) void inlined(void (*f)(void)) { f(); }
void held(void (*f)(void)) { inlined(f); __asm__ volatile(""); }
"""
_PROGRAM = """
#include <stdio.h>
#include <unistd.h>
void held(void (*)(void));
static void sleeps(void) { puts("up"); fflush(stdout); for (;;) pause(); }
int main(void) { held(sleeps); return 0; }
"""


def made(folder: Path) -> None:
    """The program, its library and the library's debug file, each whole."""
    (folder / "held.c").write_text(_LIBRARY)
    (folder / "main.c").write_text(_PROGRAM)
    for command in (
        ["gcc", "-g", "-O1", "-shared", "-fPIC", "-Wl,--build-id=sha1", "-o", "libheld.so", "held.c"],
        ["gcc", "-g", "-O1", "-o", "whole-program", "main.c", "-L.", "-lheld", f"-Wl,-z,now,-rpath,{folder}"],
        ["objcopy", "--only-keep-debug", "libheld.so", "whole-libheld.so.debug"],
        ["strip", "libheld.so"],
        ["objcopy", "--add-gnu-debuglink=whole-libheld.so.debug", "libheld.so", "whole-libheld.so"],
    ):
        subprocess.run(command, cwd=folder, check=True)


@pytest.mark.timeout(1800)
def test_no_swap_of_mapped_files_ends_us(tmp_path: Path) -> None:
    made(tmp_path)
    command = [sys.executable, str(_MAIN), str(TIMES), "17", str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60 + TIMES * _SECONDS_EACH, check=False
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    said = json.loads(done.stdout)
    print(said)
    assert said["answered"] > TIMES  # most of it is still told


def test_truncated_library_under_a_reader(tmp_path: Path) -> None:
    """The prototype: its owner truncates a mapped library after it was opened and before it is read again."""
    made(tmp_path)
    for name in ("program", "libheld.so"):
        shutil.copy(tmp_path / f"whole-{name}", tmp_path / name)
    with subprocess.Popen([tmp_path / "program"], stdout=subprocess.PIPE) as held:
        assert held.stdout is not None
        held.stdout.readline()
        code = _native.CodeFile(held.pid, "libheld")
        before = code.functions(["held"])
        assert [one.symbol for one in before] == ["held"]
        os.truncate(tmp_path / "libheld.so", 64)
        assert [one.symbol for one in code.functions(["held"])] in ([], ["held"])
        os.truncate(tmp_path / "libheld.so", 0)
        error = _failure(held.pid)
        assert "libheld.so: " in error
        held.kill()


def _failure(pid: int) -> str:
    try:
        _native.CodeFile(pid, "libheld")
    except _native.NativeError as error:
        return str(error.args[1])
    return ""


def test_replaced_and_deleted_server_binary(tmp_path: Path) -> None:
    """A running program cannot be truncated, but an upgrade replaces it."""
    server = Server("mysql-5.6.24")
    server.installation = installed_in("mysql-5.6.24", tmp_path / "server")
    with server:
        binary = server.installation.mysqld
        process = _native.Process(server.pid)
        before = functions(process)
        assert "mysqld_main" in before
        for _ in range(20):
            (tmp_path / "next").write_bytes(b"another build")
            (tmp_path / "next").rename(binary)
            assert "mysqld_main" in functions(process)
            assert "mysqld_main" in functions(_native.Process(server.pid))
            binary.unlink()
            assert "mysqld_main" in functions(_native.Process(server.pid))


def functions(process: _native.Process) -> set[str | None]:
    """The names on all stacks."""
    return {frame.function for stack in process.look().stacks.values() for frame in stack}
