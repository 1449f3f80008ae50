"""CPU time by kind of thread, from made-up readings; the rest on our own process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from innoscope.common.samples import by_series
from innoscope.metrics.collectors import process
from innoscope.metrics.collectors.errors import CollectorFailed
from innoscope.metrics.collectors.kinds import KINDS
from innoscope.metrics.collectors.process import CpuByKind, ProcessCollector
from innoscope.target.proc import ProcFs
from unit.dumps import target


def told(cpu: CpuByKind) -> dict[str, int]:
    return {kind: ns for kind, ns in cpu.groups.items() if ns}


def test_all_groups_are_there_from_the_start() -> None:
    assert CpuByKind().groups == dict.fromkeys(KINDS, 0)


def test_each_thread_counts_for_its_kind() -> None:
    cpu = CpuByKind()
    cpu.add(60, {1: 10, 2: 20, 3: 30}, {1: "io", 2: "purge", 3: "purge"})

    assert told(cpu) == {"io": 10, "purge": 50}


def test_what_an_ended_thread_had_stays() -> None:
    cpu = CpuByKind()
    cpu.add(30, {1: 10, 2: 20}, {1: "io", 2: "connection"})
    cpu.add(31, {1: 11}, {1: "io"})

    assert told(cpu) == {"io": 11, "connection": 20}


def test_what_it_used_after_our_last_reading_is_not_lost() -> None:
    cpu = CpuByKind()
    cpu.add(30, {1: 10, 2: 20}, {1: "io", 2: "connection"})
    cpu.add(40, {1: 10}, {1: "io"})  # thread 2 ended with 30

    assert told(cpu) == {"io": 10, "connection": 20, "other": 10}


def test_threads_that_ended_before_us_are_not_counted() -> None:
    cpu = CpuByKind()
    cpu.add(1_000, {1: 10}, {1: "io"})
    cpu.add(1_005, {1: 15}, {1: "io"})

    assert told(cpu) == {"io": 15}


def test_a_thread_that_no_look_has_met_waits_for_one() -> None:
    cpu = CpuByKind()
    cpu.add(10, {1: 10}, {})
    assert told(cpu) == {}
    cpu.add(14, {1: 14}, {1: "master"})
    assert told(cpu) == {"master": 14}


def test_a_thread_that_stays_unknown_is_other() -> None:
    cpu = CpuByKind()
    cpu.add(10, {1: 10}, {})
    cpu.add(14, {1: 14}, {})

    assert told(cpu) == {"other": 14}


def test_a_reused_thread_id_counts_from_zero() -> None:
    cpu = CpuByKind()
    cpu.add(50, {1: 50}, {1: "connection"})
    cpu.add(53, {1: 3}, {1: "connection"})

    assert told(cpu) == {"connection": 53}


def test_a_thread_that_changes_its_kind_takes_nothing_along() -> None:
    cpu = CpuByKind()
    cpu.add(50, {1: 50}, {1: "purge"})
    cpu.add(60, {1: 60}, {1: "io"})

    assert told(cpu) == {"purge": 50, "io": 10}


def test_nothing_ever_falls() -> None:
    cpu, before = CpuByKind(), dict.fromkeys(KINDS, 0)
    readings = [
        (100, {1: 50, 2: 40}), (130, {1: 60, 3: 5}), (131, {1: 61}), (131, {}),
        (180, {2: 1, 4: 30}), (180, {4: 30}),
    ]  # fmt: skip
    for total, threads in readings:
        cpu.add(total, threads, {1: "io", 2: "connection", 4: "connection"})
        assert all(cpu.groups[kind] >= before[kind] for kind in KINDS)
        before = dict(cpu.groups)


def own(**changes: object) -> ProcessCollector:
    pid = os.getpid()
    return ProcessCollector(
        target(pid=pid, start_time=ProcFs().stat(pid).start_time, **changes), cpu_every_s=0
    )


def test_our_own_process() -> None:
    collector = own()
    seen = by_series(collector.collect())

    assert seen["mysqld_up", ()] == 1
    assert seen["mysqld_stopped", ()] == 0
    assert seen["mysqld_info", ("mysql", "5.6.24", "ab" * 20, "symtab")] == 1
    assert abs(float(str(seen["mysqld_open_files", ()])) - len(os.listdir("/proc/self/fd"))) <= 2  # noqa: PTH208
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    assert seen["mysqld_resident_memory_bytes", ()] == pytest.approx(resident, rel=0.5)
    assert {labels[0] for name, labels in seen if name == "mysqld_cpu_seconds"} == set(KINDS)


def test_a_reused_pid_is_gone() -> None:
    collector = ProcessCollector(target(pid=os.getpid(), start_time=1))
    with pytest.raises(CollectorFailed) as caught:
        collector.collect()

    assert caught.value.reason == "gone"


def test_a_pid_that_is_not_there_is_gone() -> None:
    collector = ProcessCollector(target(pid=2**22 + 1))
    with pytest.raises(CollectorFailed) as caught:
        collector.collect()

    assert caught.value.reason == "gone"


def test_many_threads_are_read_over_several_scrapes_and_then_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """500 threads take 62 ms: a scrape stops after 50 ms, and 0.16 s in all are followed by 32 s of pause."""
    now, read = [0.0], []

    def thread_cpu(pid: int, tids: list[str]) -> dict[int, int]:
        now[0] += len(tids) / 8_000
        read.extend(tids)
        return dict.fromkeys(map(int, tids), 1)

    monkeypatch.setattr(process, "_thread_ids", lambda pid: [str(tid) for tid in range(1300)])
    monkeypatch.setattr(process, "_thread_cpu", thread_cpu)
    pid = os.getpid()
    collector = ProcessCollector(
        target(pid=pid, start_time=ProcFs().stat(pid).start_time), clock=lambda: now[0]
    )
    reads = []
    for at in (0, 5, 10, 15, 41, 43):
        now[0] = float(at)
        list(collector.collect())
        reads.append(len(read))

    assert reads == [500, 1000, 1300, 1300, 1300, 1800]
