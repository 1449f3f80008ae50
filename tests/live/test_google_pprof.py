"""Test that Google's pprof reads Innoscope's profiles and reports the same counts."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import googlepprof
import pprofile
from innoscope.sampling.engine import Engine
from innoscope.sampling.fold import StackReport
from innoscope.sampling.profile.report import report as profile_report
from innoscope.sampling.profile_history import ClassifiedStack, ProfileHistory
from innoscope.sampling.profile_history import report as store_report
from innoscope.sampling.render import encode
from innoscope.target.discover import find_one
from live.profiling import off_cpu, on_cpu
from servers import Server
from workloads import Oltp, RowLock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from innoscope.sampling.model import Snapshot

SNAPSHOTS = 10
SECONDS = 1.5


@pytest.fixture(scope="module")
def reports() -> Iterator[dict[str, StackReport]]:
    """Yield one report of each kind, all from one server under a mixed load."""
    with Server("mysql-5.6.24") as server, RowLock(server, 20), Oltp(server, 2):
        target = find_one(server.pid)
        engine, history, snapshots = Engine(target, method="bpf"), ProfileHistory(), []
        for _ in range(SNAPSHOTS):
            snapshots.append(engine.take_snapshot())
            history.add(snapshots[-1].taken_at, _folded(snapshots[-1]), snapshots[-1].duration_ms)
            time.sleep(0.05)
        one = StackReport(target)
        one.add(snapshots[-1])
        yield {
            "dump": one,
            "store": store_report(target, history.between(0, 1e12)),
            "on-CPU": profile_report(on_cpu(server.pid, SECONDS, 499, kernel=True)),
            "off-CPU": profile_report(off_cpu(server.pid, SECONDS)),
        }


def _folded(snapshot: Snapshot) -> Counter[ClassifiedStack]:
    """Return the stacks of a snapshot with their counts, as the sensor counts them."""
    return Counter(
        ClassifiedStack.of(thread.wait, thread.trust, thread.frames) for thread in snapshot.threads
    )


@pytest.mark.parametrize("kind", ["dump", "store", "on-CPU", "off-CPU"])
def test_google_pprof_reports_the_same_counts(
    kind: str, reports: dict[str, StackReport], tmp_path: Path
) -> None:
    ours = reports[kind]
    file = tmp_path / "profile.pb.gz"
    file.write_bytes(encode(ours, "pprof"))
    by_leaf, total = _leaves(ours)
    unit = "us" if ours.unit.pprof.unit == "microseconds" else "count"
    kind_and_unit, samples = googlepprof.raw(file)
    top = googlepprof.top(file, unit)

    assert kind_and_unit == f"{ours.unit.pprof.name}/{ours.unit.pprof.unit}"
    assert sum(samples) == total == ours.shown > 0
    assert {name: flat for name, (flat, _) in top.items() if flat} == by_leaf
    assert googlepprof.tags(file, unit)["wait"] == +ours.waits
    assert pprofile.parse(file.read_bytes()).total == total  # the tests' own parser


def _leaves(report: StackReport) -> tuple[Counter[str], int]:
    """Return the count of each innermost function, and the sum of these counts, from the folded format."""
    found: Counter[str] = Counter()
    for line in encode(report, "folded").decode().splitlines():
        path, _, count = line.rpartition(" ")
        found[path.rpartition(";")[2]] += int(count)
    return +found, found.total()
