"""Attach probes for a few seconds and measure their cost, for ``innoscope probes measure``."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from innoscope.common import console
from innoscope.common.samples import Histogram
from innoscope.metrics.collectors.kinds import default_kinds
from innoscope.metrics.collectors.probes import ProbesCollector
from innoscope.sampling.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Iterable

    from innoscope.common.samples import Sample
    from innoscope.probes.calibration import HitCost
    from innoscope.probes.report import ProbeReport
    from innoscope.target.model import Target


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of measuring for ``seconds`` seconds. ``overhead`` is a fraction of the server's CPUs."""

    reports: list[ProbeReport]
    samples: list[Sample]
    seconds: float
    attach_seconds: float
    overhead: float
    cost: HitCost

    def rows(self) -> Iterable[tuple[str, ...]]:
        """Return the rows of the table, the probes with the most hits first, and missing probes last."""
        for report in sorted(
            self.reports, key=lambda each: (each.state == "missing", -each.hits, each.probe)
        ):
            yield row(report)

    def summary(self) -> str:
        """Return one line with the number of probes, their cost per hit, and their total cost."""
        on = sum(report.state in {"attached", "sampled"} for report in self.reports)
        return (
            f"{on} of {len(self.reports)} probes attached in {self.attach_seconds:.2f} s; a hit costs "
            f"{self.cost.entry_ns / 1000:.2f} µs at the entry of a function "
            f"({self.cost.stepped_ns / 1000:.2f} where the kernel has to single-step) and "
            f"{self.cost.return_ns / 1000:.2f} µs more at its return; all of them cost {self.overhead:.3%} "
            "of the server's CPUs"
        )

    def document(self) -> dict[str, Any]:
        """Return the JSON document."""
        return {
            "seconds": self.seconds,
            "attach_seconds": self.attach_seconds,
            "overhead_ratio": self.overhead,
            "hit_cost": asdict(self.cost),
            "probes": [asdict(report) for report in self.reports],
            "metrics": [_sample(sample) for sample in self.samples],
        }


def measured(target: Target, families: frozenset[str] | None, *, seconds: float, budget: float) -> Measured:
    """Attach probes, wait for ``seconds``, read the results, and detach. Raise InnoscopeError on failure."""
    groups = _thread_groups(target)
    collector = ProbesCollector(target, families=families, budget=budget, kinds=lambda: groups)
    before = time.monotonic()
    governor = collector.start()
    attached = time.monotonic()
    try:
        _wait(seconds)
        samples = collector.collect()
        reports = collector.report()
    finally:
        collector.close()
    spent = sum(report.cost_seconds for report in reports)
    took = time.monotonic() - attached
    return Measured(
        reports=reports,
        samples=samples,
        seconds=took,
        attach_seconds=attached - before,
        overhead=spent / took / governor.cpus,
        cost=governor.cost,
    )


def _thread_groups(target: Target) -> dict[int, str]:
    """Take one snapshot, and return the kind of each thread by thread id."""
    kinds = default_kinds()
    snapshot = Engine(target).take_snapshot()
    return {thread.tid: kinds.of(thread.frames, thread.comm).name for thread in snapshot.threads}


def _wait(seconds: float) -> None:
    ends = time.monotonic() + seconds
    shows = seconds > 2
    while (left := ends - time.monotonic()) > 0:
        if shows:
            console.progress(f"attached; {left:.0f} s to go (Ctrl-C detaches the probes)")
        time.sleep(min(left, 1.0))
    if shows:
        console.clear_progress()


def row(report: ProbeReport) -> tuple[str, ...]:
    """Return the cells of a probe's row in the table."""
    if report.state == "missing":
        return (
            report.probe,
            report.family,
            report.state,
            "",
            "",
            "",
            "",
            report.reason or "",
            report.instead or report.remedy or "",
        )
    return (
        report.probe, report.family, report.state, f"{report.hits:,}", f"{report.hits_per_second:,.0f}",
        f"{report.cost_ratio:.4%}", f"{report.duty:.1%}", report.reason or ", ".join(report.symbols),
        report.note or "",
    )  # fmt: skip


def _sample(sample: Sample) -> dict[str, Any]:
    value: Any = sample.value
    if isinstance(value, Histogram):
        value = {"count": value.count, "total_seconds": value.total_ns / 1e9, "octaves_ns": value.buckets}
    return {"metric": sample.metric, "labels": sample.labels, "value": value}
