"""Processes whose file system does not respond do not delay the identification of others."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from innoscope.common import workers as module
from innoscope.common.supervision import Supervisor
from innoscope.common.workers import Workers
from innoscope.daemon.sensor import identification
from innoscope.daemon.sensor.identification import IDENTIFYING, IDENTIFYING_THREADS, Identifier
from innoscope.target import discover
from innoscope.target.proc import ProcFs
from unit.snapshots import target
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.target.data_directory import DataDirectory
    from innoscope.target.model import Target

#: The data directory of each process with this or a higher pid is on a file system that does not respond.
HANGING = 100
_PATIENCE_S = 60.0


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Replace the reads of /proc. Yield the event that makes the hanging file system respond."""
    event = threading.Event()

    def home(_: ProcFs, one: Target) -> DataDirectory | None:
        if one.pid >= HANGING:
            event.wait()
        return None

    monkeypatch.setattr(discover, "identify", lambda _, pid: target(pid=pid))
    monkeypatch.setattr(identification, "data_directory_of", home)
    yield event
    event.set()


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers(sizes={IDENTIFYING: IDENTIFYING_THREADS})
    yield made
    made.close()


def tenant(pid: int) -> str:
    return "hanging" if pid >= HANGING else "honest"


def test_others_are_identified_while_one_tenants_processes_hang(
    released: threading.Event, workers: Workers
) -> None:
    identifier = Identifier(ProcFs(), workers, tenant)
    honest, hanging = list(range(1, 41)), list(range(HANGING, HANGING + 40))
    beats = Counter[str]()
    found = set[int]()
    deadline = time.monotonic() + _PATIENCE_S
    while found != set(honest):
        assert time.monotonic() < deadline, found
        due = [pid for pid in hanging + honest if pid not in found]
        began = time.monotonic()
        for pid, one in identifier.ended(due, due, lambda: beats.update(["beat"])):
            assert one.found().target.pid == pid
            found.add(pid)
        assert time.monotonic() - began < _PATIENCE_S / 2
    assert beats["beat"] > 1
    assert workers.threads() <= IDENTIFYING_THREADS

    released.set()
    while not found >= set(hanging):
        assert time.monotonic() < deadline
        found.update(pid for pid, _ in identifier.ended(hanging, set(hanging) - found, lambda: None))


def test_processes_that_exited_still_count_while_their_threads_hang(
    released: threading.Event, workers: Workers
) -> None:
    identifier = Identifier(ProcFs(), workers, tenant)
    for pid in range(HANGING, HANGING + 20):
        assert not list(identifier.ended([pid], [pid], lambda: None))
    assert len(identifier._unfinished) <= IDENTIFYING_THREADS // 2
    assert [pid for pid, _ in identifier.ended([1], [1], lambda: None)] == [1]


def test_a_call_after_an_identification_may_block(workers: Workers) -> None:
    released = threading.Event()

    def also(one: Target) -> None:
        if one.pid == HANGING:
            released.wait()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(discover, "identify", lambda _, pid: target(pid=pid))
        identifier = Identifier(ProcFs(), workers, tenant, (also,))
        pids = [HANGING, 1]
        assert [pid for pid, _ in identifier.ended(pids, pids, lambda: None)] == [1]
        released.set()
        until(lambda: list(identifier.ended(pids, [], lambda: None)), within_s=_PATIENCE_S)


def test_containers_whose_processes_hang_leave_threads_for_others(released: threading.Event) -> None:
    """Let 50 containers have four hanging processes each, which exceeds the limit on abandoned jobs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "STUCK_S", 0.05)
        patch.setattr(module, "_ABANDON_QUICK_S", 0.05)
        patch.setattr(module, "_CHECK_S", 0.01)
        workers = Workers(sizes={IDENTIFYING: IDENTIFYING_THREADS})
        Supervisor().start("workers", workers.run, _PATIENCE_S)
        identifier = Identifier(
            ProcFs(), workers, lambda pid: f"container/{pid % 50}" if pid >= HANGING else "uid 27"
        )
        hanging = list(range(HANGING, HANGING + 200))
        assert not list(identifier.ended(hanging, hanging, lambda: None))
        abandoned = module._MAX_ABANDONED // 2
        half = module._QUICK_SPARE_FACTOR * IDENTIFYING_THREADS // 2
        until(lambda: len(workers.stuck()) > abandoned, within_s=_PATIENCE_S)
        assert [pid for pid, _ in identifier.ended([1], [1], lambda: None)] == [1]
        assert len(workers.stuck()) <= abandoned + half
        released.set()
        workers.close()


def test_a_process_is_identified_while_many_of_the_same_owner_hang(
    released: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let the search offer the processes that hang first, as after a restart of the sensor."""
    monkeypatch.setattr(module, "STUCK_S", 0.05)
    monkeypatch.setattr(module, "_ABANDON_QUICK_S", 0.05)
    monkeypatch.setattr(module, "_CHECK_S", 0.01)
    monkeypatch.setattr(identification, "_IDENTIFY_S", 0.1)
    workers = Workers(sizes={IDENTIFYING: IDENTIFYING_THREADS})
    Supervisor().start("workers", workers.run, _PATIENCE_S)
    identifier = Identifier(ProcFs(), workers, lambda _: "uid 27")
    pids = [*range(HANGING, HANGING + 60), 1]
    until(lambda: [pid for pid, _ in identifier.ended(pids, pids, lambda: None)] == [1], within_s=_PATIENCE_S)
    released.set()
    workers.close()
