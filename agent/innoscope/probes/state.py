"""Define the state of one probe in a governor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from innoscope.probes.attachment import Point

#: Initial estimate of the seconds that detaching takes.
_DETACH_S = 0.2


@dataclass(slots=True)
class State:
    """The state of one probe: its hits, cost, duty and duty cycle."""

    point: Point
    hit_cost: float
    duty: float = 1.0
    rate: float = 0.0  # hits/s while attached
    expected: float = 0.0  # hits/s that decisions assume
    hits: int = 0  # total
    cost_s: float = 0.0
    attached_s: float = 0.0  # since ``rate`` was last computed
    new_hits: int = 0  # since ``rate`` was last computed
    scale: float = 1.0  # extrapolation factor of hits in this window
    pause: float = 0.0  # length of the pause after this window, in window lengths
    detach_s: float = _DETACH_S  # duration of the last detaching
    window_start: float = 0.0
    attached_since: float | None = None  # start of the time that ``attached_s`` does not include yet
    switch_at: float = 0.0  # time of the next attach or detach in a duty cycle
