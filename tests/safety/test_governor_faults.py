"""Test failures of each call that the governor and the probe collector make.

Within 2 s after a failure, the probes must be detached, or the governor must control them again. The time in
which a thread of this process waits for a CPU does not count.

Each call fails repeatedly with an OSError, a NativeError, a MemoryError and a panic of the Rust core. In
`make test`, some of the calls fail, each with only one of these errors, in rotation. Afterwards, the probes
must work again. The budget is so small that probes are constantly attached and detached.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from innoscope import _native
from innoscope.metrics.collectors import probes as collecting
from innoscope.metrics.collectors.probes import ProbesCollector
from innoscope.probes import attachment as attaching
from innoscope.probes import governor, governor_retry
from innoscope.target.discover import find_one
from safety.injecting import ERRORS, Fault, panic, rotated
from safety.leftovers import altered
from safety.stopwatch import Stopwatch
from safety.well import assert_well
from scale import few
from servers import Server
from workloads import Fsync

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WITHIN_S: Final = 2.0
BACK_S: Final = 60.0
PAUSE_S: Final = 0.2
FAMILIES: Final = frozenset({"redo", "fsync", "spin"})
#: A budget below the cost of the probes under this load.
BUDGET: Final = 0.0002


def test_the_injected_panic_is_a_panic() -> None:
    with pytest.raises(BaseException, match="capacity overflow") as raised:
        panic()
    assert type(raised.value).__name__ == "PanicException"


class _Table:
    """A wrapper around a BPF map, in which one method can be made to fail."""

    def __init__(self, real: Any, method: str) -> None:
        self._real = real
        self.fault = Fault(getattr(real, method))
        setattr(self, method, self.fault)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


#: Calls made while probes are attached, as OBJECT.NAME. ``map NAME.METHOD`` is a method of one of the
#: attachment's maps.
_CALLS: Final = (
    "attachment.attach", "attachment.detach", "attachment.stop_counting", "attachment.read",
    "attachment.set_thread_kinds", "attachment.dropped", "attachment.disable",
    "_native.Uprobe", "_native.detach_all", "governor.duties", "governor.totals.add",
    "collecting.site_names", "descriptors.kinds", "selftest.compare", "collector._kinds",
    "collector._own_counters",
    "map counters.array", "map histograms.array", "map hits.array", "map windows.update", "map dropped.array",
    "map thread_kinds.update", "map thread_kinds.delete", "map files.entries", "map sites.entries",
)  # fmt: skip
#: Calls that `make test` makes fail: one for each way in which the governor and the collector use the kernel.
_QUICK: Final = (
    "attachment.attach", "attachment.detach", "attachment.read", "attachment.disable", "_native.Uprobe",
    "governor.duties", "descriptors.kinds", "collector._own_counters", "map counters.array",
    "map windows.update", "map thread_kinds.delete", "map files.entries",
)  # fmt: skip
#: Calls that fail only once: if they failed each time, the process would exit, as
#: test_a_process_that_cannot_detach_probes_ends checks.
_ONCE: Final = frozenset({"attachment.detach", "attachment.disable"})
#: Calls made while the probes are started, and those that `make test` makes fail.
_STARTING: Final = (
    "attaching.place", "attaching.compile_and_load", "attaching.program_text", "collecting.known_cost",
    "collecting.Governor", "_native.Uprobe", "_native.BpfMap", "_native.create_map",
    "_native.load_uprobe_program",
)  # fmt: skip
_QUICK_STARTING: Final = (
    "attaching.compile_and_load", "collecting.known_cost", "_native.BpfMap", "_native.load_uprobe_program",
)  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("mysql-5.6.24") as server, Fsync(server, 4):
        yield server
        assert_well(server)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(governor, "_RETRY_S", PAUSE_S)
    for module in (governor_retry, collecting):
        monkeypatch.setattr(module, "FIRST_PAUSE_S", PAUSE_S)
        monkeypatch.setattr(module, "MAX_PAUSE_S", PAUSE_S)


@pytest.fixture
def collector(server: Server) -> Iterator[ProbesCollector]:
    thread_ids = itertools.count(1)

    def churning() -> dict[int, str]:
        """Return a new thread id at each call, so that each call adds one map entry and deletes another."""
        return {next(thread_ids): "master"}

    collector = ProbesCollector(find_one(server.pid), families=FAMILIES, budget=BUDGET, kinds=churning)
    collector.start()
    yield collector
    collector.close()
    # If the guard's thread began to detach before `close`, it finishes detaching afterwards.
    assert _until(lambda: altered(server.pid) == set(), BACK_S)


def _inject(collector: ProbesCollector, call: str, monkeypatch: pytest.MonkeyPatch) -> Fault:
    ruling = collector.start_once()
    if call.startswith("map "):
        name, method = call.removeprefix("map ").split(".")
        table = _Table(ruling.attachment._maps[name], method)
        monkeypatch.setitem(ruling.attachment._maps, name, table)
        return table.fault
    where, _, name = call.rpartition(".")
    owners: dict[str, Any] = {
        "attachment": ruling.attachment, "_native": _native, "collecting": collecting, "collector": collector,
        "governor": governor, "governor.totals": ruling.totals, "descriptors": collector._descriptors,
        "selftest": collector._selftest,
    }  # fmt: skip
    fault = Fault(getattr(owners[where], name))
    monkeypatch.setattr(owners[where], name, fault)
    return fault


def _links() -> int:
    """Count this process's uprobe links and perf events; a failed test may keep iterator links open."""
    found = 0
    for one in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor has been closed
            kind = os.readlink(one)  # noqa: PTH115
            if kind == "anon_inode:bpf_link":
                found += "link_type:\titer\n" not in Path("/proc/self/fdinfo", one.name).read_text()
            else:
                found += kind == "anon_inode:[perf_event]"
    return found


def _until(holds: Callable[[], bool], within_s: float) -> bool:
    stopwatch = Stopwatch(os.getpid())
    while not holds():
        if stopwatch.seconds() > within_s:
            return False
        with suppress(BaseException):  # in the agent, the runner handles errors
            time.sleep(0.01)
    return True


def _scrape(collector: ProbesCollector) -> None:
    with suppress(BaseException):  # in the agent, collectors.runner turns errors into reasons
        collector.collect()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("call", few(_CALLS, *_QUICK, reason="the calls of _QUICK fail in the same ways"))
def test_probes_survive_a_failing_call(
    server: Server, collector: ProbesCollector, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ruling = collector.start_once()
    fault = _inject(collector, call, monkeypatch)
    reading = _inject(collector, "attachment.read", monkeypatch) if call == "attachment.disable" else fault
    fault.once = call in _ONCE
    for name in rotated(_CALLS.index(call)):
        fail = ERRORS[name]
        fault.arm(fail)
        if call == "attachment.disable":  # only called after another call has failed
            reading.arm(fail)

        def _hit() -> bool:
            _scrape(collector)
            return fault.failed_at is not None

        assert _until(_hit, BACK_S), f"{call} was not called"
        decided = ruling.decisions

        def _safe(decided: int = decided) -> bool:
            off = not ruling.attachment.attached and _links() == 0
            return off or (ruling.failures.why is None and ruling.alive and ruling.decisions > decided)

        assert _until(_safe, WITHIN_S), f"{name}: attached but not governed"
        fault.disarm()
        reading.disarm()

        def _governed(decided: int = ruling.decisions) -> bool:
            refused = any(point.problem for point in ruling.attachment.points)
            return ruling.failures.why is None and ruling.decisions > decided and not refused

        assert _until(_governed, BACK_S), f"{name}: probes were not attached again: {ruling.failures}"
        collector.collect()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "call", few(_STARTING, *_QUICK_STARTING, reason="the calls of _QUICK_STARTING fail in the same ways")
)
def test_probes_survive_a_failing_call_at_the_start(
    server: Server, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, _, name = call.rpartition(".")
    owner = {"attaching": attaching, "collecting": collecting, "_native": _native}[where]
    for error in rotated(_STARTING.index(call)):
        with monkeypatch.context() as patch:
            fault = Fault(getattr(owner, name))
            patch.setattr(owner, name, fault)
            fault.arm(ERRORS[error])
            # A NativeError means that the kernel does not support probes, so there is no retry.
            _starts(server, fault, comes_back=error != "NativeError")
    assert _until(lambda: altered(server.pid) == set(), BACK_S)  # removed a little later


def _starts(server: Server, fault: Fault, *, comes_back: bool) -> None:
    collector = ProbesCollector(find_one(server.pid), families=FAMILIES, attach_soon=True)
    try:
        assert _until(lambda: fault.failed_at is not None, BACK_S)
        assert _until(lambda: _links() == 0, WITHIN_S), "probes are attached"
        fault.disarm()
        if comes_back:
            assert _until(lambda: collector._governor is not None, BACK_S), "it did not start"
    finally:
        collector.close()
    assert _until(lambda: _links() == 0, WITHIN_S)


def test_probes_are_detached_while_a_tick_hangs(
    collector: ProbesCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(governor, "OVERDUE_S", 1.0)
    ruling = collector.start_once()
    hanging, go_on = threading.Event(), threading.Event()
    real = ruling.attachment.read

    def hang() -> Any:
        if ruling.attachment.attached:
            hanging.set()
            go_on.wait()
        return real()

    monkeypatch.setattr(ruling.attachment, "read", hang)
    try:
        assert hanging.wait(BACK_S)
        assert _until(lambda: _links() == 0, WITHIN_S + 1.0)
        assert "no tick for" in str(ruling.failures)
    finally:
        go_on.set()
    assert _until(lambda: ruling.failures.why is None and ruling.attachment.attached, BACK_S)


#: A script whose process cannot detach its probes by any method.
_STUCK: Final = """
import sys, time
from innoscope import _native
from innoscope.metrics.collectors.probes import ProbesCollector
from innoscope.target.discover import find_one

collector = ProbesCollector(find_one(int(sys.argv[1])), families=frozenset({"redo"}))
ruling = collector.start()
def fail(*_): raise MemoryError
setattr(ruling.attachment, sys.argv[2], fail)
ruling.attachment.read = fail
time.sleep(60)
"""


@pytest.mark.parametrize("call", ["disable", "detach"])
def test_a_process_that_cannot_detach_probes_ends(server: Server, call: str) -> None:
    ended = subprocess.run([sys.executable, "-c", _STUCK, str(server.pid), call], check=False, timeout=60)

    assert ended.returncode == -signal.SIGABRT
    assert _until(lambda: altered(server.pid) == set(), BACK_S)
