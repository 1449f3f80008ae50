"""Test that the Rust core never crashes if mapped files are truncated, rewritten, replaced or deleted."""

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


def build(folder: Path) -> None:
    """Build the intact program, its library and the library's debug file."""
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
def test_changes_of_mapped_files_crash_nothing(tmp_path: Path) -> None:
    build(tmp_path)
    command = [sys.executable, str(_MAIN), str(TIMES), "17", str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60 + TIMES * _SECONDS_EACH, check=False
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    assert json.loads(done.stdout)["answered"] > TIMES  # on average, more than one step per run succeeds


def test_a_library_that_is_truncated_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    """Truncate a mapped library after it was opened and before it is read again."""
    build(tmp_path)
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


def test_a_replaced_or_deleted_executable_keeps_its_names(tmp_path: Path) -> None:
    """Replace and delete a server's executable. The kernel does not allow truncating it."""
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
    """Return the function names of all stacks."""
    return {frame.function for stack in process.take_snapshot().stacks.values() for frame in stack}
