"""Test that the children that read servers' files have no privileges, and that failures are contained."""

from __future__ import annotations

import gc
import json
import os
import resource
import struct
import subprocess
import sys
import time
import zlib
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from innoscope import _native
from innoscope.target.proc import ProcFs
from innoscope.toggles.backends import gdb
from safety.hostile_elf import COMPRESSED, Section, elf

if TYPE_CHECKING:
    from collections.abc import Iterator

_PATIENCE_S = 20
_READER = [sys.executable, "-I", "-m", "innoscope.target.symbols.confined_reader"]

_SOURCE = "int answer = 42; struct s { int a, b; } whole; int main(void) { return answer; }\n"
#: A script that runs instead of gdb and attempts all actions that must be denied.
_TRIES = """
import ctypes, json, os, resource, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def attempt(act):
    try: act()
    except OSError as error: return type(error).__name__
    return "done"
def call(number, *arguments):
    if libc.syscall(number, *arguments) < 0: raise OSError(ctypes.get_errno(), "")
wanted = ("CapEff", "CapPrm", "CapAmb")
caps = [line.split()[1] for line in open("/proc/self/status") if line.startswith(wanted)]
print(json.dumps({
    "uid": os.getuid(), "groups": os.getgroups(), "caps": caps,
    "network": attempt(lambda: socket.socket(socket.AF_INET)),
    "local": attempt(lambda: socket.socket(socket.AF_UNIX)),
    "kill": attempt(lambda: os.kill(int(sys.argv[1]), 0)),
    "kill own user's process": attempt(lambda: os.kill(int(sys.argv[2]), 0)),
    "shadow": attempt(lambda: open("/etc/shadow")),
    "namespace": attempt(lambda: call(56, 0x10000000 | 0x40000000, 0, 0, 0, 0)),  # clone: user, network
    "mount": attempt(lambda: call(430, b"tmpfs", 0)),  # fsopen
    "keys": attempt(lambda: call(249, b"user", b"x", 0, 0)),  # request_key
    "limits": attempt(lambda: resource.prlimit(int(sys.argv[2]), resource.RLIMIT_CPU)),
    "memory of own user's process": attempt(lambda: open(f"/proc/{sys.argv[2]}/mem", "r+b")),
    "new file": attempt(lambda: open("/tmp/innoscope-confined", "w")),
    "memory": resource.getrlimit(resource.RLIMIT_AS)[0],
}))
"""


_MEMORY = Path("/sys/fs/cgroup/memory")
_GROUP_BYTES = 256 << 20
#: More than the limit on the memory of the child, which also maps libraries.
_UNTRUSTED_KIB = 400 << 10
_IN_GROUP = """
import os, pathlib, sys
from innoscope import _native
pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
try: print(_native.members_in_file(sys.argv[2], ["s.b"]))
except _native.NativeError as error: print(error)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Compile a program with debug information."""
    (tmp_path / "main.c").write_text(_SOURCE)
    subprocess.run(["gcc", "-g", "-o", "program", "main.c"], cwd=tmp_path, check=True)
    return tmp_path / "program"


@pytest.fixture
def reader(program: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start the child with a request for inlined calls. The child then waits for the first address."""
    file = os.open(program, os.O_RDONLY)
    with subprocess.Popen(
        _READER, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[3] if file == 3 else [],
        preexec_fn=None if file == 3 else lambda: os.dup2(file, 3, inheritable=True), close_fds=False,
    ) as child:  # fmt: skip
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"inlines alone\n0\n")
        child.stdin.flush()
        child.stdout.readline()
        yield child
        child.kill()
    os.close(file)


def test_the_reader_of_debug_information_has_no_privileges(reader: subprocess.Popen[bytes]) -> None:
    now = ProcFs().status(reader.pid)
    assert now["Seccomp"] == "2"
    assert now["NoNewPrivs"] == "1"
    assert {int(now[name], 16) for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")} == {0}
    limits = Path(f"/proc/{reader.pid}/limits").read_text()
    for name in ("Max file size", "Max processes", "Max open files", "Max core file size"):
        line = next(line for line in limits.splitlines() if line.startswith(name))
        assert line.removeprefix(name).split()[:2] == ["0", "0"]
    assert Path(f"/proc/{reader.pid}/oom_score_adj").read_text().strip() == "1000"


def test_the_reader_of_debug_information_returns_members(program: Path) -> None:
    found = _native.members_in_file(str(program), ["s.b", "whole.b", "no_such.x"])
    assert found is not None
    assert found.found["s.b"] == found.found["whole.b"] == _native.Member((4,), 4, "signed")
    assert found.missing == {"no_such.x": "no debug information of no_such"}


def test_a_damaged_file_has_no_debug_information(tmp_path: Path) -> None:
    path = tmp_path / "damaged"
    path.write_bytes(elf([Section(b".debug_info", 1, os.urandom(4096))]))
    found = _native.members_in_file(str(path), ["s.b"])
    assert found is not None
    assert (found.found, found.missing) == ({}, {"s.b": "no debug information of s"})


def test_memory_for_a_file_that_root_does_not_own_is_limited(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(large_debug_information())
    os.chown(path, 65534, 65534)
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        missing, peak_kib = pool.submit(_missing_and_peak, path).result()
    assert missing == {"s.b": "no debug information of s"}
    assert peak_kib < _UNTRUSTED_KIB


def _missing_and_peak(path: Path) -> tuple[dict[str, str], int]:
    """Read types. Return the members that were not found, and the peak memory of the child in KiB."""
    found = _native.members_in_file(str(path), ["s.b"])
    assert found is not None
    return dict(found.missing), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss


@pytest.mark.skipif(not _MEMORY.is_dir(), reason="no memory controller of cgroup v1")
def test_if_memory_is_short_only_the_reader_is_killed(tmp_path: Path) -> None:
    """Read a file owned by root in a cgroup whose memory limit is too low for it."""
    path = tmp_path / "large"
    path.write_bytes(large_debug_information())
    group = _MEMORY / f"innoscope-confined-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(_GROUP_BYTES))
        done = subprocess.run(
            [sys.executable, "-c", _IN_GROUP, str(group / "cgroup.procs"), str(path)],
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
    finally:
        group.rmdir()
    assert (done.returncode, done.stderr) == (0, "")
    assert "it is the first one to be killed if memory is short" in done.stdout


def large_debug_information() -> bytes:
    """Build a file whose compressed debug information unpacks to 512 MiB, with a plausible ratio."""
    piece = os.urandom(16 << 10) + bytes((1 << 20) - (16 << 10))
    packer = zlib.compressobj(1)
    body = b"".join(packer.compress(piece) for _ in range(512)) + packer.flush()
    head = struct.pack("<IIQQ", 1, 0, 512 << 20, 1)
    return elf([Section(b".debug_info", 1, head + body, COMPRESSED)])


def descriptors() -> list[str]:
    return sorted(entry.name for entry in Path("/proc/self/fd").iterdir())


def test_no_descriptor_and_no_child_remains(program: Path) -> None:
    gc.collect()  # otherwise, descriptors and children of earlier tests might disappear meanwhile
    before, running = descriptors(), children()
    for _ in range(5):
        _native.members_in_file(str(program), ["s.b"])
    assert descriptors() == before
    assert children() == running


def children() -> set[str]:
    """Return the pids of this process's children, including zombies and the servers of other tests."""
    lists = Path("/proc/self/task").glob("*/children")
    return {pid for path in lists for pid in path.read_text().split()}


@pytest.fixture
def process_of_nobody() -> Iterator[int]:
    with subprocess.Popen(["sleep", "60"], user=65534, group=65534, extra_groups=[]) as process:
        yield process.pid
        process.kill()


def test_gdb_has_no_privileges(process_of_nobody: int) -> None:
    module = "innoscope.toggles.backends.confined_gdb"
    command = [sys.executable, "-P", "-m", module, "/usr/bin/python3", "-c", _TRIES]
    done = subprocess.run(
        [*command, str(os.getpid()), str(process_of_nobody)],
        stdout=subprocess.PIPE,
        check=True,
        env=gdb.ENVIRONMENT,
    )
    reply = json.loads(done.stdout)
    assert (reply.pop("uid"), reply.pop("groups"), reply.pop("memory")) == (65534, [], 4 << 30)
    assert {int(one, 16) for one in reply.pop("caps")} == {0}
    assert reply == dict.fromkeys(reply, "PermissionError")
    assert len(reply) == 11


def test_gdb_reads_a_file_that_its_user_cannot_reach(program: Path) -> None:
    program.parent.chmod(0o700)  # the user nobody cannot reach the program by its path
    began = time.monotonic()
    reply = gdb.describe(str(program), ["answer"])
    assert reply is not None
    assert (reply["answer"].size, reply["answer"].kind) == (4, "signed")
    assert time.monotonic() - began < _PATIENCE_S


def test_gdb_does_not_read_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert gdb.describe(str(tmp_path / "pipe"), ["answer"]) is None
