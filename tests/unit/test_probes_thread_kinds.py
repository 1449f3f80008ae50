"""Metrics by kind of thread are missing until a snapshot has shown which threads belong to clients."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from innoscope.metrics.collectors.probes import ProbesCollector
from innoscope.probes.slots import default_slots
from unit.snapshots import target

if TYPE_CHECKING:
    from innoscope.probes.governor import Governor

FED = ("flushed_pages", "flushed_pages_by_thread", "checkpoints")


def collected(known_kinds: int) -> set[str]:
    """Return the metrics collected if all counters are 7 and the kind of ``known_kinds`` threads is known."""
    collector = ProbesCollector(target(pid=os.getpid()), attach_on=lambda *_: None)
    points = [SimpleNamespace(placed=SimpleNamespace(feeds=FED))]
    governor: Any = SimpleNamespace(
        attachment=SimpleNamespace(points=points, known_kinds=known_kinds),
        totals=SimpleNamespace(counters=[7.0] * default_slots().counter_count),
    )
    return {sample.metric for sample in collector._counters(cast("Governor", governor))}


def test_pages_are_not_attributed_to_clients_before_the_kinds_are_known() -> None:
    assert collected(known_kinds=0) == {"flushed_pages"}


def test_pages_are_attributed_once_the_kinds_are_known() -> None:
    assert collected(known_kinds=30) == set(FED)
