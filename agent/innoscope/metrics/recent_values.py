"""Remember a bounded number of values, and forget those that have not been seen for an hour."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Generic, TypeVar

#: Seconds after which a value that has not been seen again may be forgotten.
FORGET_S: Final = 3600.0

_Value = TypeVar("_Value")


class RecentValues(Generic[_Value]):
    """At most ``most`` values, and the monotonic time at which each was seen last."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen: OrderedDict[_Value, float] = OrderedDict()  # the value seen longest ago first

    def see(self, value: _Value, now: float) -> bool:
        """Return whether the value is known. If so, record that it was seen at ``now``."""
        if value not in self._seen:
            return False
        self._seen[value] = now
        self._seen.move_to_end(value)
        return True

    def make_room(self, now: float) -> list[_Value]:
        """Forget and return the values not seen for an hour, if there is no room for another value."""
        forgotten: list[_Value] = []
        if len(self._seen) >= self._most:
            while self._seen and now - next(iter(self._seen.values())) >= FORGET_S:
                forgotten.append(self._seen.popitem(last=False)[0])
        return forgotten

    def add(self, value: _Value, now: float) -> bool:
        """Add a value. Return False if there is no room for it."""
        if len(self._seen) >= self._most:
            return False
        self._seen[value] = now
        return True
