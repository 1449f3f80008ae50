"""What a profile comes to, as plain records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from innoscope.sampling.fold import Unit

if TYPE_CHECKING:
    from innoscope._native import ThreadTimes
    from innoscope.sampling.model import Thread
    from innoscope.target.model import Target

SAMPLES: Final = Unit("samples", ("samples", "count"))
#: Of time off the CPU; microseconds, as flame graph tools have it.
MICROSECONDS: Final = Unit("microseconds", ("off-cpu", "microseconds"), "microseconds", 1000, "ms")
#: The class of time in which a thread could run and had no CPU.
RUNNABLE: Final = "runnable"


@dataclass(frozen=True, slots=True)
class Row:
    """One thread at one stack. ``number`` is in the profile's unit, ``times`` how often it waited there."""

    thread: Thread
    number: int
    times: int = 0


@dataclass(slots=True)
class Profile:
    """A whole profile. ``began_at`` is Unix time, ``bytes`` are those of stack, as copied; ``lost`` counts
    what found the ring buffer full.

    On the CPU: ``period_ns`` of one CPU's time stand behind each sample, ``cpu_seconds`` is what the server
    used by its own account. Off it: ``threads`` add up to the rows, ``seen_ns`` is the time of waits whose
    own stack was taken (the other time is shared out by them).
    """

    target: Target
    unit: Unit
    began_at: float
    seconds: float
    rows: list[Row]
    records: int
    bytes: int
    lost: int = 0
    period_ns: int = 0
    cpu_seconds: float = 0.0
    threads: list[ThreadTimes] = field(default_factory=list)
    seen_ns: int = 0
    notes: dict[str, None] = field(default_factory=dict)
    ended: str | None = None  # why it stopped early, if it did

    @property
    def kind(self) -> str:
        """``on-cpu`` or ``off-cpu``."""
        return "on-cpu" if self.unit is SAMPLES else "off-cpu"
