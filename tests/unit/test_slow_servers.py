"""Slow servers delay no other server, even if all of them belong to the same owner."""

from __future__ import annotations

import threading
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import pytest

from innoscope.common import workers as module
from innoscope.common.samples import Sample
from innoscope.common.supervision import Supervisor
from innoscope.common.workers import Job, Workers
from innoscope.metrics.collectors.runner import Runner
from innoscope.metrics.collectors.waits import WaitsCollector
from unit.snapshots import snapshot_of, target, thread
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from innoscope.sampling.model import Snapshot
    from innoscope.target.model import Target

TURN = "uid 27"
SERVERS = 40
PATIENCE_S = 60
#: A number of seconds that no test takes.
NEVER_S = 3600.0


class Memory:
    """The memory of servers. Reading it waits for the event ``responds``."""

    def __init__(self) -> None:
        self.responds = threading.Event()
        self.responds.set()
        self.reads = Counter[int]()

    def read(self, server: int) -> None:
        self.reads[server] += 1
        self.responds.wait()


class Source:
    """A source of snapshots that reads the server's memory."""

    def __init__(self, memory: Memory, server: int) -> None:
        self._memory, self._server = memory, server

    def __call__(self, _: Target) -> Source:
        return self

    def take_snapshot(self) -> Snapshot:
        self._memory.read(self._server)
        return snapshot_of(thread(1))


def watch(workers: Workers, memory: Memory, server: int) -> WaitsCollector:
    return WaitsCollector(
        target(), workers=workers, interval_s=0.02, open_source=Source(memory, server), turn=TURN
    )


@pytest.fixture
def good(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], bool]]:
    """Watch a good server. Yield a function that returns whether it had more than ten new snapshots.

    The good server does not count as slow if the host stalls.
    """
    monkeypatch.setattr(module, "QUICK_S", NEVER_S)
    memory = Memory()
    waits = watch(workers, memory, 0)
    until(lambda: memory.reads[0] > 2, within_s=PATIENCE_S)
    before = memory.reads[0]

    def had_more() -> bool:
        nonlocal before
        if memory.reads[0] <= before + 10:
            return False
        before = memory.reads[0]
        return True

    yield had_more
    waits.close()


def test_snapshots_go_on_while_new_servers_hang(
    workers: Workers, good: Callable[[], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check this without replacing the threads of the servers that hang."""
    monkeypatch.setattr(module, "STUCK_S", NEVER_S)
    memory = Memory()
    memory.responds.clear()
    hanging = [watch(workers, memory, number) for number in range(SERVERS)]
    until(lambda: memory.reads.total() == module.SIZE, within_s=PATIENCE_S)
    good()
    until(good, within_s=PATIENCE_S)
    for waits in hanging:
        waits.close()
    memory.responds.set()


def test_snapshots_go_on_when_many_servers_hang_at_once(
    workers: Workers, good: Callable[[], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let the servers respond quickly until all of them hang for good."""
    monkeypatch.setattr(module, "_ABANDON_S", NEVER_S)
    monkeypatch.setattr(module, "STUCK_S", 0.05)
    monkeypatch.setattr(module, "_ABANDON_QUICK_S", 0.05)
    monkeypatch.setattr(module, "_CHECK_S", 0.01)
    memory = Memory()
    hanging = [watch(workers, memory, number) for number in range(SERVERS)]
    until(lambda: len(memory.reads) == SERVERS and min(memory.reads.values()) > 2, within_s=PATIENCE_S)
    memory.responds.clear()
    until(lambda: len(workers.stuck()) == SERVERS, within_s=PATIENCE_S)
    good()
    until(good, within_s=PATIENCE_S)
    memory.responds.set()
    until(lambda: not workers.stuck(), within_s=PATIENCE_S)
    for waits in hanging:
        waits.close()


class Collecting:
    """A collector that reads the server's memory, and takes at least ``least_s`` seconds."""

    name, timeout = "memory", float(PATIENCE_S)

    def __init__(self, memory: Memory, server: int, least_s: float = 0.0) -> None:
        self._memory, self._server, self._least_s = memory, server, least_s

    def collect(self) -> list[Sample]:
        threading.Event().wait(self._least_s)
        self._memory.read(self._server)
        return [Sample("mysqld_up", 1)]


@pytest.mark.parametrize("hiccup_s", [0.0, 1.1 * module.QUICK_S], ids=["new", "slow once"])
def test_a_server_is_collected_while_slow_ones_hang(hiccup_s: float) -> None:
    """Let a good server be new, or slow only once, while slow servers occupy all threads that they get."""
    workers, memory, fine = Workers(), Memory(), Memory()
    slow_s = 1.1 * module.QUICK_S
    slow = [Runner([Collecting(memory, number, slow_s)], workers, "", TURN) for number in range(8)]
    for _ in range(2):
        for runner in slow:
            runner.start()
        assert all(outcome.success for runner in slow for outcome in runner.outcomes())
    honest = Runner([Collecting(fine, 0, hiccup_s)], workers, "", TURN)
    if hiccup_s:
        assert honest.run()[0].success
    memory.responds.clear()
    for runner in slow:
        runner.start()
    until(lambda: memory.reads.total() >= 2 * len(slow) + module.SIZE // 2, within_s=PATIENCE_S)

    assert honest.run()[0].success
    memory.responds.set()
    assert all(outcome.success for runner in slow for outcome in runner.outcomes())
    workers.close(PATIENCE_S)


def test_servers_that_are_new_run_before_slow_ones() -> None:
    workers, gate, done = Workers(size=1), threading.Event(), list[int]()
    workers.submit(Job("memory", "first", gate.wait))  # type: ignore[arg-type]
    for slow_runs in (3, 4, 1, 3, 2):
        workers.submit(Job("memory", "", partial(done.append, slow_runs), turn=TURN, slow_runs=slow_runs))
    gate.set()
    until(lambda: len(done) == 5, within_s=PATIENCE_S)
    workers.close()
    assert done == [1, 2, 3, 4, 3]


def test_slow_servers_of_several_owners_leave_threads_for_each_other() -> None:
    workers, gate = Workers(), threading.Event()
    for number in range(SERVERS):
        turn = f"container/{number}"
        workers.submit(Job("memory", turn, gate.wait, turn=turn, slow_runs=3))  # type: ignore[arg-type]
    for slow_runs in (3, 1):
        honest = threading.Event()
        workers.submit(Job("memory", "honest", honest.set, turn=TURN, slow_runs=slow_runs))
        assert honest.wait(PATIENCE_S)
    for turn in ("uid 1", "uid 2"):
        workers.submit(Job("memory", turn, gate.wait, turn=turn, slow_runs=3))  # type: ignore[arg-type]
    honest = threading.Event()
    workers.submit(Job("memory", "honest", honest.set, turn=TURN))
    assert honest.wait(PATIENCE_S)
    gate.set()
    workers.close()


def test_jobs_that_never_end_are_abandoned(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first jobs of all servers hang: they are abandoned later than jobs of quick servers."""
    monkeypatch.setattr(module, "STUCK_S", 0.02)
    monkeypatch.setattr(module, "_CHECK_S", 0.01)
    monkeypatch.setattr(module, "_ABANDON_S", 0.2)
    gate, honest = threading.Event(), threading.Event()
    for number in range(SERVERS):
        workers.submit(Job("memory", str(number), gate.wait, turn=TURN))  # type: ignore[arg-type]
    workers.submit(Job("memory", "honest", honest.set, turn=TURN))
    assert honest.wait(PATIENCE_S)
    gate.set()


def test_kinds_of_jobs_can_be_abandoned_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STUCK_S", 0.02)
    monkeypatch.setattr(module, "_CHECK_S", 0.01)
    monkeypatch.setattr(module, "_ABANDON_S", 0.03)
    workers, gate, honest = Workers(abandon_after={"memory": 60.0}), threading.Event(), threading.Event()
    Supervisor().start("workers", workers.run, PATIENCE_S)
    for number in range(SERVERS):
        workers.submit(Job("memory", str(number), gate.wait, turn=TURN))  # type: ignore[arg-type]
    half = module._SPARE_FACTOR * module.SIZE // 2
    until(lambda: len(workers.stuck()) == half, within_s=PATIENCE_S)
    workers.submit_at(time.monotonic() + 0.2, Job("memory", "honest", honest.set, turn="uid 1"))
    assert honest.wait(PATIENCE_S)
    assert sum(one.owner != "honest" for one in workers.stuck()) == half
    gate.set()
    workers.close()


def test_abandoned_jobs_are_limited_for_each_owner(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let three owners have more jobs that never end than may be abandoned."""
    monkeypatch.setattr(module, "STUCK_S", 0.02)
    monkeypatch.setattr(module, "_CHECK_S", 0.01)
    monkeypatch.setattr(module, "_ABANDON_QUICK_S", 0.02)
    monkeypatch.setattr(module, "_MAX_ABANDONED", 8)
    gate, honest = threading.Event(), threading.Event()
    for owner in ("container/a", "container/b", "uid 1"):
        for _ in range(SERVERS):
            workers.submit(Job("memory", owner, gate.wait, turn=owner, slow_runs=0))  # type: ignore[arg-type]
    workers.submit(Job("memory", "honest", honest.set, turn=TURN, slow_runs=0))
    assert honest.wait(PATIENCE_S)

    def abandoned() -> Counter[str]:
        with workers._lock:
            return Counter(job.sharer for job in workers._lanes["memory", True].abandoned)

    until(lambda: abandoned().total() == 8, abandoned, within_s=PATIENCE_S)
    assert abandoned() == {"container": 4, "uid 1": 4}
    assert workers.threads() <= 8 + module._QUICK_SPARE_FACTOR * module.SIZE
    gate.set()
