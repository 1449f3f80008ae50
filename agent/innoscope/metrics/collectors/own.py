"""Collect Innoscope's own metrics (collector ``agent``), such as its cost and the state of the sensor."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from innoscope import __version__
from innoscope.common.samples import Outcome, Sample
from innoscope.common.supervision import Trouble

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True)
class SensorState:
    """The agent's view of its sensor, with the most recently reported costs."""

    up: bool = False
    words: str = "not queried yet"
    life: Hashable = None  # identifies the sensor process
    restarts: int = 0
    version: str = ""
    cpu_seconds: float | None = None
    rss_bytes: int | None = None
    trouble: Trouble = field(default_factory=Trouble)

    def answered(
        self, life: Hashable, version: str, cpu_seconds: float, rss_bytes: int, trouble: Trouble
    ) -> None:
        """Record a successful query. If ``life`` differs from the previous one, count a sensor restart."""
        if self.life not in (None, life):
            self.restarts += 1
        self.up, self.words, self.life, self.version = True, "", life, version
        self.cpu_seconds, self.rss_bytes, self.trouble = cpu_seconds, rss_bytes, trouble

    def failed(self, words: str) -> None:
        """Record a failed query and its reason."""
        self.up, self.words = False, words


@dataclass(slots=True)
class Pushes:
    """Counts of pushed, failed and dropped profiles. ``last_success`` is Unix time; 0 if none succeeded."""

    sent: int = 0
    bytes: int = 0
    failures: dict[str, int] = field(default_factory=dict)  # failed attempts, by reason
    dropped_memory: int = 0
    dropped_refused: int = 0
    queue_bytes: int = 0
    last_success: float = 0.0

    def samples(self) -> list[Sample]:
        """Return the counts as samples."""
        return [
            Sample("push_profiles", self.sent),
            Sample("push_bytes", self.bytes),
            *(Sample("push_failures", count, (reason,)) for reason, count in list(self.failures.items())),
            Sample("push_dropped", self.dropped_memory, ("memory",)),
            Sample("push_dropped", self.dropped_refused, ("refused",)),
            Sample("push_queue_bytes", self.queue_bytes),
            Sample("push_last_success_timestamp_seconds", self.last_success),
        ]


def resident_bytes() -> int:
    """Return this process's resident memory in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def cpu_seconds() -> float:
    """Return this process's CPU time in seconds, including all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def own(
    sensor: SensorState,
    dropped: int,
    pushes: Pushes | None = None,
    trouble: Trouble | None = None,
    more: Sequence[Sample] = (),
) -> Outcome:
    """Return Innoscope's own samples. While the sensor is down, its samples are omitted.

    ``pushes`` is None if no profiles are pushed. ``more`` contains the metrics of other parts
    of the agent.
    """
    began, trouble = time.monotonic(), trouble or Trouble()
    samples = [
        Sample("build_info", 1, (__version__,)),
        Sample("sensor_up", int(sensor.up)),
        Sample("sensor_restarts", sensor.restarts),
        Sample("own_cpu_seconds", cpu_seconds(), ("agent",)),
        Sample("own_resident_memory_bytes", resident_bytes(), ("agent",)),
        Sample("series_dropped", dropped),
        Sample("own_thread_restarts", trouble.restarts, ("agent",)),
        Sample("own_threads_stuck", trouble.stuck, ("agent",)),
    ]
    if sensor.up and sensor.cpu_seconds is not None and sensor.rss_bytes is not None:
        samples.append(Sample("own_cpu_seconds", sensor.cpu_seconds, ("sensor",)))
        samples.append(Sample("own_resident_memory_bytes", sensor.rss_bytes, ("sensor",)))
        samples.append(Sample("own_thread_restarts", sensor.trouble.restarts, ("sensor",)))
        samples.append(Sample("own_threads_stuck", sensor.trouble.stuck, ("sensor",)))
        samples.append(Sample("sensor_watch_failures", sensor.trouble.watch_failures))
    if pushes is not None:
        samples += pushes.samples()
    samples += more
    return Outcome("agent", True, time.monotonic() - began, tuple(samples))
