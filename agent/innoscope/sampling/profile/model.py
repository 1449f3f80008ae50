"""Define the result of a profile."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from innoscope.sampling.fold import SampleType, Unit

if TYPE_CHECKING:
    from innoscope._native import ThreadTimes
    from innoscope.sampling.model import Thread
    from innoscope.target.model import Target

SAMPLES: Final = Unit("samples", SampleType("samples", "count"))
#: Off-CPU time in microseconds, as flame graph tools expect.
MICROSECONDS: Final = Unit("microseconds", SampleType("off-cpu", "microseconds"), "microseconds", 1000, "ms")
#: Wait class of the time for which a thread was runnable but had no CPU.
RUNNABLE: Final = "runnable"


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """One thread with one stack. ``number`` is in the profile's unit; ``times`` counts waits or samples."""

    thread: Thread
    number: int
    times: int = 0


@dataclass(slots=True)
class Profile:
    """A complete profile. ``method`` is ``bpf`` or ``perf``.

    ``began_at`` is Unix time. ``bytes`` counts the copied stack bytes. ``lost`` counts records lost because
    a ring buffer was full and, off-CPU with BPF, events of threads without room in a map.

    On-CPU: each sample counts as ``period_ns`` of one CPU's time; ``cpu_seconds`` is the CPU time according
    to /proc. Off-CPU: the blocked and runnable times in ``threads`` have the same sum as the times in
    ``rows``. ``seen_ns`` is the time of the waits whose own stack was captured. The remaining time is
    distributed over the captured stacks.
    """

    target: Target
    unit: Unit
    began_at: float
    seconds: float
    rows: list[ProfileRow]
    records: int
    bytes: int
    method: str = "bpf"
    lost: int = 0
    period_ns: int = 0
    cpu_seconds: float = 0.0
    threads: list[ThreadTimes] = field(default_factory=list)
    seen_ns: int = 0
    notes: dict[str, None] = field(default_factory=dict)
    ended: str | None = None  # why the profile ended early; None if it did not

    @property
    def kind(self) -> str:
        """Return ``on-cpu`` or ``off-cpu``."""
        return "on-cpu" if self.unit is SAMPLES else "off-cpu"
