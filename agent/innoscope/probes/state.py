"""What a governor knows of one probe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from innoscope.probes.attachment import Point

#: What the kernel takes to take one off, until we know better.
_OFF_S = 0.2


@dataclass(slots=True)
class State:
    """One probe: what it did since the last tick, what it may do."""

    point: Point
    hit_cost: float
    duty: float = 1.0
    rate: float = 0.0  # hits a second while attached
    expected: float = 0.0  # the same, as a decision has to reckon with it
    hits: int = 0  # all that were counted
    cost_s: float = 0.0
    attached_s: float = 0.0  # since the rate was reckoned
    fresh: int = 0  # hits since then
    scale: float = 1.0  # a hit in this window of a duty cycle stands for so many
    pause: float = 0.0  # how long the pause after this window is to be, in lengths of the window
    off_s: float = _OFF_S  # how long the kernel took to take it off the last time
    begun: float = 0.0  # when its window began
    on_since: float | None = None  # since when its time on is not yet in attached_s
    switch_at: float = 0.0  # when a duty cycle goes on or off next
