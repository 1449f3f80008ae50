"""Test failures of each call that the governor and the probe collector make.

Within 2 s after a failure, the probes must be detached, or the governor must control them again. The time in
which a thread of this process waits for a CPU does not count.

Each call fails repeatedly with an OSError, a NativeError, a MemoryError and a panic of the Rust core. In
`make test`, some of the calls fail, each with only one of these errors, in rotation. Afterwards, the probes
must work again. The budget is so small that probes are constantly attached and detached.
"""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest

from innoscope import _native
from innoscope.metrics.collectors import probes as collecting
from innoscope.metrics.collectors.probes import ProbesCollector
from innoscope.probes import attachment as attaching
from innoscope.probes import governor
from innoscope.target.discover import find_one
from safety.governing import (
    BACK_S,
    FAMILIES,
    WITHIN_S,
    controlled,
    detached,
    holds_within,
    inject,
    links,
    new_collector,
    recovered,
    scrape,
    shorten_pauses,
)
from safety.injecting import ERRORS, Fault, panic, rotated
from safety.leftovers import altered
from safety.well import assert_well
from scale import few
from servers import Server
from workloads import Fsync

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.probes.governor import Governor


def test_the_injected_panic_is_a_panic() -> None:
    with pytest.raises(BaseException, match="capacity overflow") as raised:
        panic()
    assert type(raised.value).__name__ == "PanicException"


#: Number of detaching threads to kill, one less than guard.py tolerates.
KILLS: Final = 2
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
    shorten_pauses(monkeypatch)


@pytest.fixture
def collector(server: Server) -> Iterator[ProbesCollector]:
    collector = new_collector(server)
    collector.start()
    yield collector
    collector.close()
    # If the guard's thread began to detach before `close`, it finishes detaching afterwards.
    assert holds_within(BACK_S, lambda: altered(server.pid) == set())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("call", few(_CALLS, *_QUICK, reason="the calls of _QUICK fail in the same ways"))
def test_probes_survive_a_failing_call(
    server: Server, collector: ProbesCollector, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ruling = collector.start_once()
    fault = inject(collector, call, monkeypatch)
    reading = inject(collector, "attachment.read", monkeypatch) if call == "attachment.disable" else fault
    fault.once = call in _ONCE
    for name in rotated(_CALLS.index(call)):
        fail = ERRORS[name]
        fault.arm(fail)
        if call == "attachment.disable":  # only called after another call has failed
            reading.arm(fail)

        def _hit() -> bool:
            scrape(collector)
            return fault.failed_at is not None

        assert holds_within(BACK_S, _hit), f"{call} was not called"
        decided = ruling.decisions

        def _safe(decided: int = decided) -> bool:
            return detached(ruling) or controlled(ruling, decided)

        assert holds_within(WITHIN_S, _safe), f"{name}: attached but not governed"
        fault.disarm()
        reading.disarm()

        back = partial(recovered, ruling, ruling.decisions)
        assert holds_within(BACK_S, back), f"{name}: probes were not attached again: {ruling.failures}"
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
    assert holds_within(BACK_S, lambda: altered(server.pid) == set())  # removed a little later


def _starts(server: Server, fault: Fault, *, comes_back: bool) -> None:
    collector = ProbesCollector(find_one(server.pid), families=FAMILIES, attach_soon=True)
    try:
        assert holds_within(BACK_S, lambda: fault.failed_at is not None)
        assert holds_within(WITHIN_S, lambda: links() == 0), "probes are attached"
        fault.disarm()
        if comes_back:
            assert holds_within(BACK_S, lambda: collector._governor is not None), "it did not start"
    finally:
        collector.close()
    assert holds_within(WITHIN_S, lambda: links() == 0)


@contextmanager
def _hanging(ruling: Governor, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a tick of the governor hang while probes are attached."""
    monkeypatch.setattr(governor, "OVERDUE_S", 1.0)
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
        yield
    finally:
        go_on.set()
    assert holds_within(BACK_S, lambda: ruling.failures.why is None and ruling.attachment.attached)


def test_probes_are_detached_while_a_tick_hangs(
    collector: ProbesCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    ruling = collector.start_once()
    with _hanging(ruling, monkeypatch):
        assert holds_within(WITHIN_S + 1.0, lambda: links() == 0)
        assert "no tick for" in str(ruling.failures)


def test_a_killed_detaching_thread_is_replaced(
    collector: ProbesCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kill two threads of the guard while they detach. If a third one failed, the process would abort."""
    ruling = collector.start_once()
    real, killed = ruling.attachment.disable, list[threading.Thread]()

    def disable() -> None:
        while threading.current_thread().name == "detach" and len(killed) < KILLS:
            time.sleep(0.01)
        real()

    def kill() -> bool:
        for thread in threading.enumerate():
            if thread.name == "detach" and thread not in killed:
                identity = ctypes.c_ulong(thread.ident or 0)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(identity, ctypes.py_object(SystemExit))
                thread.join()
                killed.append(thread)
        return len(killed) == KILLS

    monkeypatch.setattr(ruling.attachment, "disable", disable)
    with _hanging(ruling, monkeypatch):
        assert holds_within(BACK_S, kill)
        assert ruling.attachment.attached
        assert holds_within(WITHIN_S, lambda: links() == 0)


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
    assert holds_within(BACK_S, lambda: altered(server.pid) == set())
