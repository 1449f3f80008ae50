"""Parse the version ranges in catalogs: ``5.6``, ``5.6+``, ``5.5-5.7``."""

from __future__ import annotations

import re
from typing import Final

_RANGE: Final = re.compile(r"(\d+(?:\.\d+)*)(?:(\+)|-(\d+(?:\.\d+)*))?")
_LEADING: Final = re.compile(r"\d{1,5}(?:\.\d{1,5}){0,3}")


class VersionRange:
    """The versions from ``first`` to the last one that begins with ``last`` (None: no upper bound).

    This class is not a dataclass, because msgspec would then expect a mapping instead of a string in files.
    """

    __slots__ = ("first", "last")

    def __init__(self, first: tuple[int, ...], last: tuple[int, ...] | None) -> None:
        self.first, self.last = first, last

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VersionRange) and (self.first, self.last) == (other.first, other.last)

    def __hash__(self) -> int:
        return hash((self.first, self.last))

    @classmethod
    def parse(cls, text: str) -> VersionRange:
        """Parse ``5.6`` (all 5.6.x), ``5.6+`` or ``5.5-5.7`` (to the last 5.7.x).

        Raise ValueError if the range is malformed or reversed.
        """
        match = _RANGE.fullmatch(text)
        if match is None:
            raise ValueError(f"malformed version range {text!r}: use 5.6, 5.6+ or 5.5-5.7")
        first, last = _numbers(match[1]), None if match[2] else _numbers(match[3] or match[1])
        if last is not None and first[: len(last)] > last:
            raise ValueError(f"reversed version range {text!r}")
        return cls(first, last)

    def __contains__(self, version: tuple[int, ...]) -> bool:
        """Return whether a server's version is in the range."""
        if version < self.first:
            return False
        return self.last is None or version[: len(self.last)] <= self.last

    def overlaps(self, other: VersionRange) -> bool:
        """Return whether at least one version is in both ranges."""
        return max(self.first, other.first) in self and max(self.first, other.first) in other

    def __str__(self) -> str:
        first = ".".join(map(str, self.first))
        if self.last is None:
            return f"{first}+"
        return first if self.last == self.first else f"{first}-{'.'.join(map(str, self.last))}"


def leading_numbers(text: str) -> tuple[int, ...]:
    """Return the numbers at the start of a version (``10.11.19-MariaDB``); empty if there are none."""
    match = _LEADING.match(text)
    return _numbers(match[0]) if match else ()


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))
