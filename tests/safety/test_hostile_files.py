"""Test that hostile files and processes are handled in less than 1 s and with less than 64 MiB of memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from innoscope import _native
from safety.hostile_elf import FILES, FRAMES, compile_program, compile_recursion
from safety.stopwatch import Stopwatch
from servers import Server

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = 1.0
MIB = 64
_TESTS = Path(__file__).parents[1]
_ENDS = 60


def read_by_core(how: str, subject: object) -> dict[str, Any]:
    """Read a hostile file or process with ``hostile_main`` in a child process, and return the report."""
    command = [sys.executable, "-m", "safety.hostile_main", how, str(subject)]
    done = subprocess.run(command, cwd=_TESTS, capture_output=True, text=True, timeout=_ENDS, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def assert_cheap(report: dict[str, Any]) -> None:
    assert report["seconds"] < SECONDS, report
    assert report["grown"] < MIB, report
    assert report["child"] < MIB, report


_OPERATIONS = "an expression in .eh_frame takes more than 500 operations"
#: The trust of a stack with each of the FRAMES, and the reason in its note.
UNWOUND = {
    "loop": ("inferred", _OPERATIONS),
    "growing_loop": ("inferred", _OPERATIONS),
    "branching_loop": ("inferred", _OPERATIONS),
    "return_address_loop": ("inferred", _OPERATIONS),
    "frame_pointer_loop": ("inferred", _OPERATIONS),
    "remembering": ("inferred", "an entry of .eh_frame has more than 65536 bytes"),
    "nops": ("exact", None),  # within the limits
    "standing_still": ("incomplete", None),  # it has no caller, and no limit is exceeded
}


@contextmanager
def running(program: Path) -> Iterator[int]:
    """Start a program and yield its pid once it sleeps."""
    child = subprocess.Popen([program])
    try:
        sleeping = Path(f"/proc/{child.pid}/wchan")
        while "nanosleep" not in sleeping.read_text():
            assert child.poll() is None
        yield child.pid
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file_is_handled_within_limits(name: str, tmp_path: Path) -> None:
    make, reason = FILES[name]
    path = tmp_path / f"{name}.elf"
    path.write_bytes(make())
    report = read_by_core("mapped_file", path)
    assert_cheap(report)
    if reason is not None:
        # The confined child that reads debug information does not know the path.
        texts = [f"{name}: {reason}" for name in (path, "debug file")]
        assert any(text in str(answer) for answer in report["answers"] for text in texts), report


@pytest.mark.parametrize("name", FRAMES)
def test_hostile_unwind_information_is_handled_within_limits(name: str, tmp_path: Path) -> None:
    with running(compile_program(tmp_path, FRAMES[name])) as pid:
        report = read_by_core("process", pid)
        assert_cheap(report)
        [stack], [trust], notes, _ = report["answers"][0]
        expected, reason = UNWOUND[name]
        assert (stack[0], trust) == ("spin", expected)
        texts = [] if reason is None else [f"{tmp_path}/looper: {reason}, so callers may be missing or wrong"]
        assert notes == texts


@pytest.mark.parametrize(("threads", "fit"), [(60, True), (300, False)])
def test_deep_stacks_of_long_names_are_handled_within_limits(threads: int, fit: bool, tmp_path: Path) -> None:
    """Take snapshots of distinct stacks, in which a function with a name of 4,000 characters recurses."""
    with running(compile_recursion(tmp_path, "f" * 4_000, threads)) as pid:
        report = read_by_core("long_names", pid)
    assert_cheap(report)
    names, empty, notes = report["answers"]
    assert "f" * 511 + "…" in names
    assert max(map(len, names)) == 512
    assert (empty == 0) == fit
    assert any("have more than 200000 frames" in note for note in notes) != fit


def test_deep_stacks_of_many_processes_are_limited_together(tmp_path: Path) -> None:
    """Open a process with 300 distinct stacks of about 1,000 frames 8 times, to simulate eight servers."""
    with running(compile_recursion(tmp_path, "f" * 4_000, 300)) as pid:
        report = read_by_core("many_of_long_names", pid)
    assert report["grown"] < MIB, report
    missing = [empty for _, empty, _ in report["answers"]]
    assert max(missing) < 300, missing
    notes = [note for _, _, found in report["answers"] for note in found]
    assert any("of all processes exceed the 200000 frames that they share" in note for note in notes), notes


def test_an_endless_unwind_expression_delays_no_other_server(tmp_path: Path) -> None:
    looper = compile_program(tmp_path, FRAMES["loop"])
    with running(looper) as pid, Server("mysql-5.6.24") as server:
        hostile, real = _native.Process(pid), _native.Process(server.pid)
        for _ in range(20):
            stopwatch = Stopwatch()
            hostile.take_snapshot()
            threads = real.take_snapshot().threads
            assert stopwatch.seconds() < SECONDS
            assert len(threads) > 10


def test_a_huge_sparse_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    make, _ = FILES["too_many_symbols"]
    path.write_bytes(make())
    os.truncate(path, 1 << 40)
    assert_cheap(read_by_core("file", path))
    with pytest.raises(_native.NativeError) as caught:
        _native.elf_info(str(path))
    assert f"{path}: larger than" in str(caught.value.args[1])


@pytest.mark.parametrize("kind", ["fifo", "device", "folder"])
def test_only_regular_files_are_opened(kind: str, tmp_path: Path) -> None:
    path = tmp_path / kind
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    report = read_by_core("file", path)
    assert_cheap(report)
    assert f"{path}: not a regular file" in report["answers"][0]


def test_links_in_a_chroot_do_not_lead_out_of_it(tmp_path: Path) -> None:
    """Resolve links that point to the host's root, for a process in a chroot."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "escape").symlink_to("../../../../../../../../etc/hostname")
    (root / "through").symlink_to("/proc/self/root/etc/hostname")
    command = [sys.executable, "-c", _CHROOTED, str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE) as inside:
        assert inside.stdout is not None
        inside.stdout.readline()
        for name in ("escape", "through"):
            path = f"/proc/{inside.pid}/root/{name}"
            with pytest.raises(_native.NativeError) as caught:
                _native.elf_info(path)
            assert "No such file" in str(caught.value.args[1])


_CHROOTED = """
import os, sys
os.chroot(sys.argv[1])
print("ready", flush=True)
sys.stdin.read()
"""
