"""Many patterns against few names, each asked for again and again."""

from __future__ import annotations

import re
from typing import Final

from innoscope.stacks.catalog import is_plain, to_regex


class Globs:
    """Lists of names, globs and ``/regular expressions/``: which of them does a name match?

    Compiling each as a regular expression costs more than it saves. A plain name is looked up; a pattern
    waits under its first letters, and becomes a regular expression only when a name has those.
    """

    HEAD: Final = 3

    def __init__(self) -> None:
        self._plain: dict[str, set[int]] = {}
        self._by_head: dict[str, dict[str, set[int]]] = {}
        self._compiled: dict[str, re.Pattern[str]] = {}

    def add(self, pattern: str, number: int) -> None:
        """List ``number`` has this pattern."""
        if is_plain(pattern):
            self._plain.setdefault(pattern, set()).add(number)
            return
        head = re.split(r"[*?/]", pattern, maxsplit=1)[0][: self.HEAD]
        key = head if len(head) == self.HEAD else ""
        self._by_head.setdefault(key, {}).setdefault(pattern, set()).add(number)

    def matches(self, name: str) -> frozenset[int]:
        """The numbers of the lists of which some pattern matches."""
        found = set(self._plain.get(name, ()))
        for head in (name[: self.HEAD], ""):
            for pattern, numbers in self._by_head.get(head, {}).items():
                if not numbers <= found and self._match(pattern, name):
                    found |= numbers
        return frozenset(found)

    def _match(self, pattern: str, name: str) -> bool:
        head, star, tail = pattern.partition("*")
        if star and "*" not in tail and not {"?", "/"} & set(pattern):  # most are "begin*" or "*end"
            return len(name) >= len(head) + len(tail) and name.startswith(head) and name.endswith(tail)
        if pattern not in self._compiled:
            self._compiled[pattern] = re.compile(to_regex(pattern))
        return self._compiled[pattern].fullmatch(name) is not None
