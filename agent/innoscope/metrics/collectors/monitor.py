"""Parse the InnoDB monitor, the text of ``SHOW ENGINE INNODB STATUS``.

Each requested line is searched for in its section only, and no other lines are parsed. Lines that a release
adds, removes or moves therefore do not affect the result for other lines.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

#: A heading: a name between two lines of dashes (``---`` / ``LOG`` / ``---``).
_HEADING: Final = re.compile(r"^-{3,}\n([A-Z][A-Z0-9 /&-]*)\n-{3,}$", re.MULTILINE)
#: A number of at most 20 digits, the length of the largest 64-bit number.
_NUMBER: Final = re.compile(r"\d{1,20}")


def sections(text: str) -> dict[str, str]:
    """Return the text of each section, by heading: ``{"LOG": "Log …"}``. Duplicates are ignored."""
    found: dict[str, str] = {}
    headings = list(_HEADING.finditer(text))
    ends = [*(heading.start() for heading in headings[1:]), len(text)]
    for heading, end in zip(headings, ends, strict=False):  # without headings, ``ends`` is longer
        found.setdefault(heading.group(1).strip(), text[heading.end() : end])
    return found


def number(parts: Mapping[str, str], section: str, line: re.Pattern[str]) -> int | None:
    """Return the number in the first line that matches in full; None if the section or line is missing.

    If ``line`` has two groups, they match the high and low halves of a number (InnoDB before 5.1.45).
    """
    for text in parts.get(section, "").splitlines():
        match = line.fullmatch(text.rstrip())
        if match:
            digits = [group for group in match.groups() if group is not None]
            return int(digits[0]) if len(digits) == 1 else (int(digits[0]) << 32) + int(digits[1])
    return None


def total(parts: Mapping[str, str], section: str, line: re.Pattern[str]) -> int | None:
    """Return the sum of the numbers in all lines that match in full; None if no line matches.

    The group of ``line`` matches one number, or several, such as ``0, 3, 1``.
    """
    matches = [line.fullmatch(text.rstrip()) for text in parts.get(section, "").splitlines()]
    numbers = [number for match in matches if match for number in _NUMBER.findall(match.group(1))]
    return sum(map(int, numbers)) if numbers else None
