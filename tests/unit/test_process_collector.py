"""Test CPU time by kind of thread with synthetic samples, and the other metrics with this process."""

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
from unit.snapshots import target


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ([(60, {1: 10, 2: 20, 3: 30}, {1: "io", 2: "purge", 3: "purge"})], {"io": 10, "purge": 50}),
        (
            [(30, {1: 10, 2: 20}, {1: "io", 2: "connection"}), (31, {1: 11}, {1: "io"})],
            {"io": 11, "connection": 20},
        ),
        (
            [(30, {1: 10, 2: 20}, {1: "io", 2: "connection"}), (40, {1: 10}, {1: "io"})],
            {"io": 10, "connection": 20, "other": 10},
        ),
        ([(1_000, {1: 10}, {1: "io"}), (1_005, {1: 15}, {1: "io"})], {"io": 15}),
        ([(10, {1: 10}, {})], {}),
        ([(10, {1: 10}, {}), (14, {1: 14}, {1: "master"})], {"master": 14}),
        ([(10, {1: 10}, {}), (14, {1: 14}, {})], {"other": 14}),
        ([(50, {1: 50}, {1: "connection"}), (53, {1: 3}, {1: "connection"})], {"connection": 53}),
        ([(50, {1: 50}, {1: "purge"}), (60, {1: 60}, {1: "io"})], {"purge": 50, "io": 10}),
    ],
    ids=[
        "running threads", "ended thread", "time after the last reading", "threads that ended before", "new",
        "classified later", "never classified", "reused thread id", "changed kind",
    ],
)  # fmt: skip
def test_cpu_time_counts_for_the_kind_of_its_thread(
    readings: list[tuple[int, dict[int, int], dict[int, str]]], expected: dict[str, int]
) -> None:
    cpu = CpuByKind()
    for total, threads, kinds in readings:
        cpu.add(total, threads, kinds)

    assert cpu.groups == dict.fromkeys(KINDS, 0) | expected


def test_cpu_time_never_decreases() -> None:
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


def test_a_live_process_has_all_its_metrics() -> None:
    collector = own()
    seen = by_series(collector.collect())

    assert seen["mysqld_up", ()] == 1
    assert seen["mysqld_stopped", ()] == 0
    assert seen["mysqld_info", ("mysql", "5.6.24", "ab" * 20, "symtab")] == 1
    assert abs(float(str(seen["mysqld_open_files", ()])) - len(os.listdir("/proc/self/fd"))) <= 2  # noqa: PTH208
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    assert seen["mysqld_resident_memory_bytes", ()] == pytest.approx(resident, rel=0.5)
    assert {labels[0] for name, labels in seen if name == "mysqld_cpu_seconds"} == set(KINDS)


@pytest.mark.parametrize("pid", [os.getpid(), 2**22 + 1], ids=["reused", "missing"])
def test_a_reused_or_missing_pid_is_gone(pid: int) -> None:
    collector = ProcessCollector(target(pid=pid, start_time=1))
    with pytest.raises(CollectorFailed) as caught:
        collector.collect()

    assert caught.value.reason == "gone"


def test_reading_many_threads_is_spread_over_scrapes_and_then_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Simulate a host on which reading 500 threads takes 62 ms. A scrape stops reading after 50 ms.

    Reading all threads takes 0.16 s, so the pause before the next read is 32 s.
    """
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
