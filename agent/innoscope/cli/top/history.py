"""Store the thread counts of each wait class for the last minute, and draw sparklines and bars."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SPAN_S = 60.0
_LEVELS = "▁▂▃▄▅▆▇█"


class WaitHistory:
    """Thread counts per wait class in each snapshot from the last minute."""

    def __init__(self, span_s: float = SPAN_S) -> None:
        self.span_s = span_s
        self._snapshots: deque[tuple[float, Mapping[str, int]]] = deque()

    def add(self, taken_at: float, counts: Mapping[str, int]) -> None:
        """Add the counts of a snapshot taken at a Unix time, and drop snapshots older than the span.

        If the time is earlier than the last snapshot's, the clock was set back: drop all previous snapshots.
        """
        if self._snapshots and taken_at < self._snapshots[-1][0]:
            self._snapshots.clear()
        self._snapshots.append((taken_at, counts))
        while self._snapshots[0][0] <= taken_at - self.span_s:
            self._snapshots.popleft()

    def known(self) -> set[str]:
        """Return the wait classes that occurred within the span."""
        return {name for _, counts in self._snapshots for name, count in counts.items() if count}

    def series(self, wait: str, columns: int) -> list[int | None]:
        """Divide the span into ``columns`` parts, and return the highest count in each, oldest first.

        Parts without a snapshot repeat the previous count for up to 1.5 intervals; after that, they are None.
        """
        parts: list[int | None] = [None] * columns
        if not self._snapshots or not columns:
            return parts
        start = self._snapshots[-1][0] - self.span_s
        for taken_at, counts in self._snapshots:
            part = max(0, ceil((taken_at - start) / self.span_s * columns) - 1)
            parts[part] = max(parts[part] or 0, counts.get(wait, 0))
        return _carried(parts, self._longest_gap(columns))

    def _longest_gap(self, columns: int) -> int:
        """Return 1.5 times the median interval, in columns. A longer gap means that data is missing."""
        times = [taken_at for taken_at, _ in self._snapshots]
        gaps = sorted(after - before for before, after in pairwise(times))
        if not gaps:
            return 0
        return int(1.5 * gaps[len(gaps) // 2] / self.span_s * columns)


def _carried(parts: Sequence[int | None], longest: int) -> list[int | None]:
    """Fill the first ``longest`` parts of each gap with the value before the gap."""
    filled: list[int | None] = []
    last: int | None = None
    age = 0
    for part in parts:
        age = 0 if part is not None else age + 1
        last = part if part is not None else last
        filled.append(last if age <= longest else None)
    return filled


def sparkline(series: Sequence[int | None]) -> str:
    """Return one character per value, scaled to the highest value.

    None is shown as a space. Only 0 is shown as the lowest bar.
    """
    highest = max((value for value in series if value), default=0)
    return "".join(" " if value is None else _LEVELS[_level(value, highest)] for value in series)


def _level(value: int, highest: int) -> int:
    if value == 0:
        return 0
    return max(1, round(value / highest * (len(_LEVELS) - 1)))


def bar(value: int, highest: int, columns: int) -> str:
    """Return a bar of up to ``columns`` characters in steps of 1/8 character. Only the bar for 0 is empty."""
    if value <= 0 or highest <= 0:
        return ""
    eighths = max(1, round(value / highest * columns * 8))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
