"""Test that no breakpoint remains in the server, however a process with probes ends.

The process is killed by the OOM killer, aborted as if by systemd's watchdog, killed by SIGBUS, or killed
together with its cgroup. This happens at a random time while its probes are attached, or while it
detaches and attaches the probes in a loop.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from safety.leftovers import altered
from safety.well import assert_well
from scale import count
from servers import Server
from waiting import until
from workloads import Fsync

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Number of times that the process is ended in each way, in each state of the probes.
ENDS: Final = count(quick=2, full=100)
SEED: Final = 20261123
_MEMORY: Final = Path("/sys/fs/cgroup/memory")
_UNIFIED: Final = Path("/sys/fs/cgroup/unified")
#: Bytes left below the memory limit when the process starts to allocate.
_LEFT: Final = 8 << 20
_MAX_DELAY_S: Final = 0.2
_GONE_S: Final = 60
_WAYS: Final = {"oom": signal.SIGKILL, "abort": signal.SIGABRT, "bus": signal.SIGBUS, "group": signal.SIGKILL}


class _Prober:
    def __init__(self, server: Server, *groups: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "safety.prober_main", str(server.pid), *map(str, groups)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
        )
        self._expect("attached")

    def tell(self, what: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()

    def begin(self, what: str) -> None:
        self.tell(what)
        self._expect("began")

    def _expect(self, word: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        if self.process.stdout.readline().strip() != word:
            raise AssertionError(self.process.stderr.read())


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("mysql-5.6.24") as server, Fsync(server, 2):
        yield server


@contextmanager
def _group(home: Path) -> Iterator[Path]:
    group = home / f"innoscope-{os.getpid()}"
    group.mkdir()
    try:
        yield group
    finally:
        until(lambda: _removed(group), within_s=_GONE_S, every_s=0.01)


def _removed(group: Path) -> bool:
    """Remove the cgroup. A helper that has exited belongs to it until process 1 has reaped the helper."""
    try:
        group.rmdir()
    except OSError:
        return False
    return True


def _until_empty(group: Path) -> None:
    """Wait until the cgroup is empty: the helpers that detach probes can outlive the process."""
    deadline = time.monotonic() + _GONE_S
    while (group / "cgroup.procs").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("way", _WAYS)
@pytest.mark.parametrize("moment", ["attached", "detaching"])
def test_no_breakpoint_remains(server: Server, way: str, moment: str) -> None:
    draw = random.Random(f"{SEED} {way} {moment}")  # noqa: S311
    for _ in range(ENDS):
        with ExitStack() as stack:
            memory, unified = (stack.enter_context(_group(home)) for home in (_MEMORY, _UNIFIED))
            prober = _Prober(server, memory, unified)
            stack.callback(_end, prober)
            # The sensors of other tests may be attaching probes to this server, or detaching them.
            until(lambda: not altered(server.pid), lambda: "a breakpoint existed before", within_s=_GONE_S)
            if moment == "detaching":
                prober.begin("detach")
            time.sleep(draw.uniform(0, _MAX_DELAY_S))
            began = _kill(prober, way, memory, unified)
            assert prober.process.wait(_GONE_S) == -_WAYS[way]
            _until_empty(unified)
        while left := altered(server.pid):
            assert time.monotonic() < began + _GONE_S, f"breakpoints remain: {left}"
        assert_well(server)


def _kill(prober: _Prober, way: str, memory: Path, unified: Path) -> float:
    """Kill the process. Return the time at which the kill began."""
    began = time.monotonic()
    if way == "oom":
        (memory / "memory.swappiness").write_text("0")
        used = int((memory / "memory.usage_in_bytes").read_text())
        (memory / "memory.limit_in_bytes").write_text(str(used + _LEFT))
        prober.tell("eat")
    elif way == "bus":
        prober.tell("bus")
    elif way == "abort":
        prober.process.send_signal(signal.SIGABRT)
    else:
        (unified / "cgroup.kill").write_text("1")
    return began


def _end(prober: _Prober) -> None:
    prober.process.kill()
    prober.process.communicate()
