"""A builder of evidence for tests of the rules that ``diagnose`` applies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from innoscope.diagnose.evidence import Evidence, MetricReadings
from innoscope.sampling.snapshot_history import CLIENT, SnapshotSummary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from innoscope.diagnose.verdict import Verdict

SERVER = {"flavour": "mysql", "version": "5.6.24", "pid": "42"}
SECONDS = 10.0
SNAPSHOTS = 10


def evidence(
    threads: Mapping[str, int] | Mapping[tuple[str, str], int] | None,
    *readings: Mapping[str, Any],
    **more: Any,
) -> Evidence:
    """Return evidence that covers ten seconds.

    ``threads`` maps wait classes to thread counts; the threads are clients unless the key also names a group.
    All ten snapshots have these counts; if ``threads`` is None, there are no snapshots. ``readings`` are
    metric values, spread evenly over the ten seconds.
    """
    counts = {(CLIENT, key) if isinstance(key, str) else key: count for key, count in (threads or {}).items()}
    snapshots = tuple(SnapshotSummary(at, counts) for at in range(SNAPSHOTS)) if threads is not None else ()
    step = SECONDS / max(len(readings) - 1, 1)
    over_time = tuple(MetricReadings(number * step, one) for number, one in enumerate(readings))
    return Evidence(SERVER, 0.0, SECONDS, over_time, snapshots, **more)


def names(verdict: Verdict) -> list[str]:
    return [finding.name for finding in verdict.findings]
