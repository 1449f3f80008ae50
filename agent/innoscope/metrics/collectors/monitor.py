"""Parse the InnoDB monitor, the text of ``SHOW ENGINE INNODB STATUS``.

Only requested lines are parsed, each in its own section. A line that a release adds, removes or moves has
no effect on other lines.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

#: A heading is a name between two lines of dashes: ``---`` / ``LOG`` / ``---``.
_HEADING: Final = re.compile(r"^-{3,}\n([A-Z][A-Z0-9 /&-]*)\n-{3,}$", re.MULTILINE)


def sections(text: str) -> dict[str, str]:
    """Return ``{"LOG": "Log sequence number …"}``. If a name occurs twice, the first section is returned."""
    found: dict[str, str] = {}
    headings = list(_HEADING.finditer(text))
    ends = [*(heading.start() for heading in headings[1:]), len(text)]
    for heading, end in zip(headings, ends, strict=False):  # no headings, no sections
        found.setdefault(heading.group(1).strip(), text[heading.end() : end])
    return found


def number(parts: Mapping[str, str], section: str, line: re.Pattern[str]) -> int | None:
    """Return the number in the first line that matches completely; None if the section or line is missing.

    If ``line`` has two groups, they match the high and the low half of a number (InnoDB before 5.1.45).
    """
    for text in parts.get(section, "").splitlines():
        match = line.fullmatch(text.rstrip())
        if match:
            digits = [group for group in match.groups() if group is not None]
            return int(digits[0]) if len(digits) == 1 else (int(digits[0]) << 32) + int(digits[1])
    return None
