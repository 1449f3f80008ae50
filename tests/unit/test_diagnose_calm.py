"""`diagnose` reports that nothing is wrong only if it took snapshots and few waits are unexplained."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from innoscope.diagnose.evidence import MissingSource
from innoscope.diagnose.host import HostCounters
from innoscope.diagnose.text import record, text
from innoscope.diagnose.verdict import judge
from innoscope.sampling.snapshot_history import CLIENT, ObservedStack
from unit.evidence import evidence, names

if TYPE_CHECKING:
    from pathlib import Path

BUSY = {"cpus": 2.0, "cpu_busy_ratio": 1.0, "cpu_stall_ratio": 0.9}


@pytest.mark.parametrize(
    ("threads", "found"),
    [
        ({"other": 1}, ["unexplained"]),
        ({"other": 3, "on_cpu": 6}, ["unexplained"]),
        ({"other": 2, "on_cpu": 6}, []),  # a quarter of the active threads
        ({"idle": 50, "user_sleep": 5, "on_cpu": 2}, []),
        ({"replication": 4}, ["unexplained"]),  # no finding covers clients in this wait class
        # A finding covers this wait, but two threads are too few for a convoy.
        ({"row_lock": 2}, ["unexplained"]),
        ({"row_lock": 1, "on_cpu": 1}, []),
        ({"row_lock": 8, "other": 2}, ["row_lock_convoy"]),
        ({"row_lock": 5, "other": 5}, ["row_lock_convoy", "unexplained"]),
    ],
)
def test_waits_that_no_finding_covers(threads: dict[str, int], found: list[str]) -> None:
    assert names(judge(evidence(threads))) == found


def test_unexplained_shows_the_most_frequent_stacks() -> None:
    seen = (
        ObservedStack(CLIENT, "other", ("futex", "rare"), 2),
        ObservedStack(CLIENT, "replication", ("futex", "frequent"), 9),
        ObservedStack(CLIENT, "on_cpu", ("computes",), 20),
    )
    [found] = judge(evidence({"other": 1, "replication": 3, "on_cpu": 2}, seen=seen)).findings
    assert [stack.functions[-1] for stack in found.stacks] == ["frequent", "rare"]


@pytest.mark.parametrize(
    ("threads", "host", "found"),
    [
        ({"on_cpu": 24}, BUSY, ["cpu_saturated"]),
        ({"on_cpu": 24}, BUSY | {"cpus": 32.0}, []),
        ({"on_cpu": 24}, {"cpus": 2.0, "cpu_busy_ratio": 0.4, "cpu_stall_ratio": 0.1}, []),
        ({"on_cpu": 24}, BUSY | {"throttled_ratio": 0.5}, ["cpu_throttled", "cpu_saturated"]),
        ({"on_cpu": 1}, {"throttled_ratio": 0.01}, []),
        ({"innodb_queue": 15, "on_cpu": 1}, BUSY, ["thread_concurrency"]),
    ],
)
def test_cpu_time_and_admission(threads: dict[str, int], host: dict[str, float], found: list[str]) -> None:
    assert names(judge(evidence(threads, host=host))) == found


@pytest.mark.parametrize("reason", ["rights", "unsupported"])
def test_without_snapshots_nothing_is_called_healthy(reason: str) -> None:
    seen = evidence(None, missing={"looks": MissingSource(reason, "no BPF")})
    verdict = judge(seen)
    assert (names(verdict), verdict.blind, verdict.nothing_wrong) == ([], True, False)
    assert record(seen, verdict)["nothing_wrong"] is False
    shown = "\n".join(text(seen, verdict))
    assert "Nothing wrong was found" not in shown
    assert "No snapshot of the threads was taken, so a stall may have been missed" in shown


@pytest.mark.parametrize("missing", [{}, {"looks": MissingSource("timeout", "too slow")}])
def test_no_completed_snapshot_is_a_finding(missing: dict[str, MissingSource]) -> None:
    assert names(judge(evidence(None, missing=missing))) == ["no_snapshots"]


def test_checks_without_values_are_named() -> None:
    seen = evidence({"idle": 5})
    verdict = judge(seen)
    assert verdict.nothing_wrong
    assert "cpu_throttled" in verdict.not_applicable
    assert verdict.checked + len(verdict.not_applicable) == verdict.rules
    assert "Not checked, because this server does not have the data: " in "\n".join(text(seen, verdict))


def test_host_values(tmp_path: Path) -> None:
    """Check ratios of the counters' increases, which do not depend on the elapsed time."""
    files = {
        "proc/42/cgroup": "0::/app/db\n",
        "proc/42/status": "Name:\tmysqld\nCpus_allowed:\t3,0000000f\n",
        "proc/stat": "cpu  300 0 100 500 100 0 0 0 0 0\n",
        "proc/pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=100\nfull total=0\n",
        "groups/app/cpu.stat": "usage_usec 5\nnr_periods 100\nnr_throttled 10\n",
        "groups/app/io.max": "8:0 rbps=max wbps=1048576 riops=max wiops=max\n",
    }
    _write(tmp_path, files)
    host = HostCounters(42, tmp_path / "proc", tmp_path / "groups")
    _write(tmp_path, {
        "proc/stat": "cpu  500 0 200 550 150 0 0 0 0 0\n",
        "groups/app/cpu.stat": "usage_usec 9\nnr_periods 200\nnr_throttled 60\n",
    })  # fmt: skip
    found = host.rates()
    assert found["cpus"] == 6
    assert found["cpu_busy_ratio"] == pytest.approx(0.75)
    assert found["throttled_ratio"] == pytest.approx(0.5)
    assert found["group_io_limited"] == 1
    assert found["cpu_stall_ratio"] == 0


def _write(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
