"""Test that servers whose memory cannot be read, as if swap hung, delay no other server of the same user."""

from __future__ import annotations

import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from safety.sensing import Sensing, of_pid, outcome
from safety.stopwatch import Stopwatch, undisturbed
from safety.test_hostile_tenants import missing
from scale import count
from servers import Keeper, Server
from waiting import until

if TYPE_CHECKING:
    from innoscope.daemon.protocol.messages import Reply

_SOURCE: Final = Path(__file__).with_name("hanging_memory.c")
HANGING: Final = count(quick=20, full=50)
ANSWER_S: Final = 1.0
COLLECTIONS: Final = count(quick=5, full=60)
#: Maximum number of replies without all metrics of the other server while more and more servers hang.
INCOMPLETE: Final = 5


class HangingServer:
    """A process that has the name and the user of the tests' servers. Its data directory is ``data``."""

    def __init__(self, program: Path, data: Path) -> None:
        data.mkdir()
        self._keeper = Keeper()
        self._process = subprocess.Popen([program], stdout=subprocess.PIPE, cwd=data)
        self.pid = self._process.pid
        self._keeper.watch(self.pid)
        self._expect(b"ready\n")

    def __enter__(self) -> HangingServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._keeper.close()

    def hang(self) -> None:
        """Make all further accesses to the stack of the process's second thread hang."""
        self._process.send_signal(signal.SIGUSR1)
        self._expect(b"hangs\n")

    def _expect(self, line: bytes) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == line


@pytest.mark.timeout(240)
def test_servers_whose_memory_hangs_do_not_delay_a_server_of_the_same_user(folder: Path) -> None:
    """Use the method procfs. While a sleepable BPF program hangs, the kernel cannot detach any uprobe.

    bpf_iter_run_prog (kernel/bpf/bpf_iter.c) runs the program under rcu_read_lock_trace, for which
    uprobe_unregister_sync (kernel/events/uprobes.c) waits.
    """
    program = folder / "mysqld"
    subprocess.run(["cc", "-O1", "-pthread", "-o", program, _SOURCE], check=True)
    took: list[float] = []
    with ExitStack() as stack:
        server = stack.enter_context(Server("mysql-5.6.24"))
        hanging = [stack.enter_context(HangingServer(program, folder / str(n))) for n in range(HANGING)]
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
