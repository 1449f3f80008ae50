"""Reading the InnoDB monitor: the text of ``SHOW ENGINE INNODB STATUS``.

Only lines that are asked for are looked at, each in its own section: what a release adds, drops or moves does
no harm.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

#: ``---`` / ``LOG`` / ``---``: a name between two rules.
_HEADING: Final = re.compile(r"^-{3,}\n([A-Z][A-Z0-9 /&-]*)\n-{3,}$", re.MULTILINE)


def sections(text: str) -> dict[str, str]:
    """``{"LOG": "Log sequence number …"}``; the first one counts where a name comes twice."""
    found: dict[str, str] = {}
    headings = list(_HEADING.finditer(text))
    ends = [*(heading.start() for heading in headings[1:]), len(text)]
    for heading, end in zip(headings, ends, strict=False):  # no headings, no sections
        found.setdefault(heading.group(1).strip(), text[heading.end() : end])
    return found


def number(parts: Mapping[str, str], section: str, line: re.Pattern[str]) -> int | None:
    """The number in the first whole line that matches; None without such a section or line.

    Two groups are the high and the low half of a number, as InnoDB printed them before 5.1.45.
    """
    for text in parts.get(section, "").splitlines():
        match = line.fullmatch(text.rstrip())
        if match:
            digits = [group for group in match.groups() if group is not None]
            return int(digits[0]) if len(digits) == 1 else (int(digits[0]) << 32) + int(digits[1])
    return None
