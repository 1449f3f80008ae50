"""Test that servers whose memory cannot be read, as if swap hung, delay no other server of the same user."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from innoscope._native import CodeFile, Uprobe
from innoscope.probes.loader import compile_and_load
from safety.command import INNOSCOPE
from safety.hanging_files import HangingFiles
from safety.sensing import Sensing, of_pid, outcome
from safety.stopwatch import Stopwatch, undisturbed
from safety.test_hostile_tenants import missing
from scale import count
from servers import Keeper, Server
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from innoscope.daemon.protocol.messages import Reply

_SOURCE: Final = Path(__file__).with_name("hanging_memory.c")
HANGING: Final = count(quick=20, full=50)
ANSWER_S: Final = 1.0
COLLECTIONS: Final = count(quick=5, full=60)
#: A minimal BPF program.
_PROBE: Final = """
BPF_ARRAY(seen, u64, 1);
int probe(void *context) { return 0; }
"""
#: Command that runs a process in a container: with separate mounts, /proc and pids.
_CONTAINER: Final = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
#: Detaching a probe takes milliseconds. While an iterator holds the kernel's lock, it never ends.
DETACH_S: Final = 30.0
#: Functions of the kernel in which a thread waits for a page of a FUSE file system.
_FUSE_WAITS: Final = ("request_wait_answer", "folio_wait_bit_common")
#: Number of the system call process_vm_readv.
_READ: Final = {"x86_64": "310", "aarch64": "270"}[platform.machine()]
#: Maximum number of replies without all metrics of the other server while more and more servers hang.
INCOMPLETE: Final = 5


class HangingServer:
    """A process that has the name and the user of the tests' servers. Its data directory is ``data``.

    ``command`` runs the program. With ``contained``, it runs in a container.
    """

    def __init__(self, command: Sequence[str | Path], data: Path, *, contained: bool = False) -> None:
        data.mkdir()
        self._keeper = Keeper()
        prefix = _CONTAINER if contained else ()
        self._process = subprocess.Popen([*prefix, *command], stdout=subprocess.PIPE, cwd=data)
        self.pid = self._process.pid
        self._keeper.watch(self.pid)
        self._expect(b"ready\n")
        if contained:
            self.pid = int(Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text())

    def __enter__(self) -> HangingServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._keeper.close()

    def hang(self) -> None:
        """Make all further accesses to the stack of the process's second thread hang."""
        os.kill(self.pid, signal.SIGUSR1)
        self._expect(b"hangs\n")

    def _expect(self, line: bytes) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == line


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("hanging") / "mysqld"
    subprocess.run(["cc", "-O1", "-pthread", "-o", program, _SOURCE], check=True)
    return program


@pytest.mark.timeout(240)
def test_servers_whose_memory_hangs_do_not_delay_a_server_of_the_same_user(
    folder: Path, program: Path
) -> None:
    """Use the method procfs. While a sleepable BPF program hangs, the kernel cannot detach any uprobe.

    bpf_iter_run_prog (kernel/bpf/bpf_iter.c) runs the program under rcu_read_lock_trace, for which
    uprobe_unregister_sync (kernel/events/uprobes.c) waits.
    """
    took: list[float] = []
    with ExitStack() as stack:
        server = stack.enter_context(Server("mysql-5.6.24"))
        hanging = [stack.enter_context(HangingServer([program], folder / str(n))) for n in range(HANGING)]
        only = [text for one in hanging for text in ("--only", one.pid)]
        sensing = stack.enter_context(Sensing("--no-probes", "--method", "procfs", *only, only=[server]))

        def collect() -> Reply:
            stopwatch = Stopwatch()
            reply = sensing.client.collect()
            took.append(stopwatch.seconds())
            return reply

        def all_respond() -> bool:
            reply = collect()
            found = [of_pid(reply, one.pid) for one in hanging]
            responding = [one for one in found if one and outcome(one, "waits").success]
            return not missing(reply, server.pid) and len(responding) == HANGING

        incomplete = 0

        def all_hang() -> bool:
            nonlocal incomplete
            reply = collect()
            incomplete += bool(missing(reply, server.pid))
            return reply.trouble.stuck >= HANGING

        until(all_respond, lambda: sensing.log[-4000:], every_s=0.5)
        for one in hanging:
            one.hang()
        began = time.monotonic()
        until(all_hang, lambda: sensing.log[-4000:], every_s=0.5)
        print(f"all hang after {time.monotonic() - began:.1f} s; {incomplete} incomplete replies until then")
        for _ in range(COLLECTIONS):
            time.sleep(1)  # the interval of snapshots
            assert missing(undisturbed(collect), server.pid) == {}
    print(f"slowest reply: {max(took):.2f} s")
    assert incomplete <= INCOMPLETE
    assert max(took) < ANSWER_S


@pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="no FUSE")
def test_memory_that_hangs_in_a_container_does_not_keep_probes_attached(folder: Path, program: Path) -> None:
    """Detach a probe from a server while a snapshot of a process in a container hangs.

    A stack of that process is in a file of a FUSE file system that does not respond. With ``--method bpf``,
    detaching would not end.
    """
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(max_workers=1))
        server = stack.enter_context(Server("mysql-5.6.24"))
        compiled = stack.enter_context(closing(compile_and_load(_PROBE, ["probe"], ["seen"])))
        file = CodeFile(server.pid)
        function = file.functions(["_Z21mysql_execute_command"])[0]
        probe = Uprobe(compiled.programs["probe"], file.path, function.offset, server.pid)
        at_end = stack.enter_context(ExitStack())
        mounted = folder / "mounted"
        mounted.mkdir()
        files = stack.enter_context(HangingFiles(mounted))
        command = [program, mounted / "memory"]
        hanging = stack.enter_context(HangingServer(command, folder / "data", contained=True))
        files.hang()
        hanging.hang()
        snapshot = subprocess.Popen([INNOSCOPE, "stacks", "--pid", str(hanging.pid)])
        at_end.callback(snapshot.wait)  # a process that waits for the file system may not die before it does
        stack.callback(snapshot.kill)
        until(lambda: _reads_and_waits(snapshot.pid))
        pool.submit(probe.detach).result(timeout=DETACH_S)
        assert snapshot.poll() is None


def _reads_and_waits(pid: int) -> bool:
    """Return whether a thread waits for a file's page or for FUSE while it reads another process's memory."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has just exited
            reads = task.joinpath("syscall").read_text().split()[0] == _READ
            if reads and task.joinpath("wchan").read_text() in _FUSE_WAITS:
                return True
    return False
