"""The state of a replay: position, speed, and whether it is playing. This module writes no output."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from innoscope.cli.parameters import parse_duration, parse_moment
from innoscope.common.errors import InnoscopeError

if TYPE_CHECKING:
    from innoscope.sampling.recording import Recording

SPEEDS = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_MINUTE_S = 60.0


class Player:
    """A clock that runs through a recording. ``moment`` is its current position as a Unix time."""

    def __init__(self, recording: Recording, start: float | None = None) -> None:
        self.recording = recording
        self.moment = recording.times[0] if start is None else start
        self.seek(self.moment)
        self.playing = True
        self._speed = SPEEDS.index(1.0)

    @property
    def index(self) -> int:
        """Return the index of the snapshot that is shown."""
        return self.recording.at(self.moment)

    @property
    def at_end(self) -> bool:
        """Return whether the last snapshot is shown."""
        return self.index == len(self.recording) - 1

    @property
    def speed(self) -> float:
        """Return the speed in recorded seconds per real second."""
        return SPEEDS[self._speed]

    def advance(self, elapsed_s: float) -> None:
        """Advance by ``elapsed_s`` real seconds if playing. The clock stops at the end of the recording."""
        if self.playing:
            self.seek(self.moment + elapsed_s * self.speed)
            self.playing = not self.at_end

    def seek(self, moment: float) -> None:
        """Go to a Unix time, clamped to the recording."""
        self.moment = min(max(moment, self.recording.times[0]), self.recording.times[-1])

    def toggle(self) -> None:
        """Play or pause. At the end, play again from the start."""
        if self.at_end and not self.playing:
            self.seek(self.recording.times[0])
        self.playing = not self.playing

    def step(self, count: int) -> None:
        """Pause, and go forward by ``count`` snapshots (back if negative)."""
        self.playing = False
        index = min(max(self.index + count, 0), len(self.recording) - 1)
        self.moment = self.recording.times[index]

    def faster(self, steps: int) -> None:
        """Increase the speed by ``steps`` levels (decrease it if negative)."""
        self._speed = min(max(self._speed + steps, 0), len(SPEEDS) - 1)


def position(text: str, first: float, last: float) -> float:
    """Convert ``text`` to a Unix time in a recording from ``first`` to ``last`` (Unix times).

    ``+30s`` is 30 seconds after the start. All other times (``-5m``, ``14:05``, see parameters.Moment) are
    relative to the end. Raise ValueError or OverflowError if it is malformed, and InnoscopeError if it is
    outside the recording.
    """
    moment = first + parse_duration(text[1:]) if text.startswith("+") else parse_moment(text, last)
    if text.count(":") == 1 and first - _MINUTE_S < moment < first:
        return first  # the minute in which the recording begins
    if not int(first) <= moment <= last + 1:
        span = f"{_local(first)} to {_local(last)}"
        raise InnoscopeError(f"{text} is outside the recording", remedy=f"the recording is from {span}")
    return moment


def _local(moment: float) -> str:
    return datetime.fromtimestamp(moment).astimezone().strftime("%Y-%m-%d %H:%M:%S")
