"""Define the state that a governor keeps for each probe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from innoscope.probes.full_time_counts import Share

if TYPE_CHECKING:
    from innoscope.probes.attachment import Point

#: Initial estimate of the time to detach, in seconds.
_DETACH_S = 0.2


@dataclass(slots=True)
class State:
    """The hits, the cost and the duty cycle of one probe."""

    point: Point
    hit_cost: float
    duty: float = 1.0
    rate: float = 0.0  # hits/s while attached
    expected: float = 0.0  # hits/s on which the duty cycle is based
    hits: int = 0  # total
    cost_s: float = 0.0
    attached_s: float = 0.0  # since ``rate`` was last computed
    new_hits: int = 0  # since ``rate`` was last computed
    scale: float = 1.0  # extrapolation factor of hits in this window
    pause: float = 0.0  # length of the pause after this window, in window lengths
    detach_s: float = _DETACH_S  # duration of the last detach
    window_start: float = 0.0
    attached_since: float | None = None  # start of the attached time that is not in ``attached_s`` yet
    switch_at: float = 0.0  # time of the next attach or detach in a duty cycle
    #: Time up to which the totals already cover the current pause; None during a window.
    paused_at: float | None = None

    def share(self, now: float) -> Share | None:
        """Return the extrapolation of the hits since the last call; None if the probe is always attached."""
        if self.scale <= 1:
            return None
        if self.paused_at is None:
            return Share(self.scale, 0.0)
        left = self.switch_at - self.paused_at
        passed = max(0.0, now - self.paused_at)
        self.paused_at += passed
        return Share(self.scale, min(1.0, passed / left) if left > 0 else 1.0)
