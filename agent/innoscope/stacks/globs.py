"""Many patterns against few names, each asked for again and again."""

from __future__ import annotations

import re
from typing import Final

from innoscope.stacks.catalog import is_plain, to_regex


class Globs:
    """Lists of names, globs and ``/regular expressions/``: which of them does a name match?

    Compiling each as a regular expression costs more than it saves. A plain name is looked up; one with stars
    only, as most are, waits under its first letters; the rest is compiled when a name is there.
    """

    HEAD: Final = 3

    def __init__(self) -> None:
        self._plain: dict[str, set[int]] = {}
        self._stars: dict[str, dict[tuple[str, ...], set[int]]] = {}  # by head, then by what is between stars
        self._others: dict[str, set[int]] = {}

    def add(self, pattern: str, number: int) -> None:
        """List ``number`` has this pattern."""
        if is_plain(pattern):
            self._plain.setdefault(pattern, set()).add(number)
        elif set("?/") & set(pattern):
            self._others.setdefault(pattern, set()).add(number)
        else:
            parts = tuple(pattern.split("*"))
            head = parts[0][: self.HEAD] if len(parts[0]) >= self.HEAD else ""
            self._stars.setdefault(head, {}).setdefault(parts, set()).add(number)

    def matches(self, name: str) -> frozenset[int]:
        """The numbers of the lists of which some pattern matches."""
        found = set(self._plain.get(name, ()))
        for head in (name[: self.HEAD], ""):
            for parts, numbers in self._stars.get(head, {}).items():
                if not numbers <= found and _fits(name, *parts):
                    found |= numbers
        for pattern, numbers in self._others.items():
            if re.fullmatch(to_regex(pattern), name):
                found |= numbers
        return frozenset(found)


def _fits(name: str, head: str, *rest: str) -> bool:
    """Whether the name begins and ends so, and has the rest in between, in this order."""
    *middle, tail = rest
    at, end = len(head), len(name) - len(tail)
    if at > end or not name.startswith(head) or not name.endswith(tail):
        return False
    for part in middle:
        at = name.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True
