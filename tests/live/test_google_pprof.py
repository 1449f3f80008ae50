"""Google's pprof opens what we write, and counts what we count."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import googlepprof
import pprofile
from innoscope.sampling.engine import Engine
from innoscope.sampling.fold import Report
from innoscope.sampling.profile.report import report as profile_report
from innoscope.sampling.profile_history import ProfileHistory, Stack
from innoscope.sampling.profile_history import report as store_report
from innoscope.sampling.render import encode
from innoscope.target.discover import find_one
from live import figures
from live.profiling import off_cpu, on_cpu
from servers import Server
from workloads import Oltp, RowLock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from innoscope.sampling.model import Dump

LOOKS = 10
SECONDS = 1.5


@pytest.fixture(scope="module")
def reports() -> Iterator[dict[str, Report]]:
    """One of each kind, of the same server under a mixed load."""
    with Server("mysql-5.6.24") as server, RowLock(server, 20), Oltp(server, 2):
        target = find_one(server.pid)
        engine, kept, dumps = Engine(target, method="bpf"), ProfileHistory(), []
        for _ in range(LOOKS):
            dumps.append(engine.look())
            kept.add(dumps[-1].taken_at, _folded(dumps[-1]), dumps[-1].duration_ms)
            time.sleep(0.05)
        one = Report(target)
        one.add(dumps[-1])
        yield {
            "dump": one,
            "store": store_report(target, kept.between(0, 1e12)),
            "on-CPU": profile_report(on_cpu(server.pid, SECONDS, 499, kernel=True)),
            "off-CPU": profile_report(off_cpu(server.pid, SECONDS)),
        }


def _folded(dump: Dump) -> Counter[Stack]:
    """As the sensor counts a look."""
    return Counter(Stack.of(thread.wait, thread.trust, thread.frames) for thread in dump.threads)


@pytest.mark.parametrize("kind", ["dump", "store", "on-CPU", "off-CPU"])
def test_google_pprof_counts_what_we_count(kind: str, reports: dict[str, Report], tmp_path: Path) -> None:
    ours = reports[kind]
    file = tmp_path / "profile.pb.gz"
    file.write_bytes(encode(ours, "pprof"))
    by_leaf, total = _leaves(ours)
    unit = "us" if ours.unit.pprof[1] == "microseconds" else "count"
    told, samples = googlepprof.raw(file)
    top = googlepprof.top(file, unit)

    assert told == "/".join(ours.unit.pprof)
    assert sum(samples) == total == ours.shown > 0
    assert {name: flat for name, (flat, _) in top.items() if flat} == by_leaf
    assert googlepprof.tags(file, unit)["wait"] == +ours.waits
    assert pprofile.parse(file.read_bytes()).total == total  # what the tests' own reader says
    figures.record(
        "Google's pprof", kind, f"{len(samples)} samples, {total:,} {ours.unit.pprof[0]}, {len(by_leaf)} "
        f"innermost functions: the same as ours in -raw, -top and -tags", total=total,
    )  # fmt: skip


def _leaves(report: Report) -> tuple[Counter[str], int]:
    """By innermost function, and in all, as ``--format folded`` has it."""
    found: Counter[str] = Counter()
    for line in encode(report, "folded").decode().splitlines():
        path, _, count = line.rpartition(" ")
        found[path.rpartition(";")[2]] += int(count)
    return +found, found.total()
