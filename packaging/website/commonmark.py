"""Convert CommonMark, which code hosts render, to the dialect of Python-Markdown, which mkdocs uses."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Python-Markdown recognizes the content of a list item by this indentation. In CommonMark, it begins in the
#: column of the item's first word.
_INDENT = 4
_MARKER = re.compile(r"(?:[-*+]|\d{1,9}[.)]) {1,4}(?=\S)")
_FENCE = re.compile(r"(`{3,}|~{3,})")
_LINK = re.compile(r"(?<=\]\()[^)\s]+(?=\))")


def slug(heading: str, separator: str) -> str:
    """Return a heading's anchor as code hosts generate it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


@dataclass(slots=True)
class _Item:
    """A list item: the column in which its content begins, and whether it has several paragraphs."""

    column: int
    several: bool = False


def indent_lists(text: str) -> str:
    """Indent the content of list items by four columns per level.

    If an item has several paragraphs, add the blank line that Python-Markdown needs before the next item.
    """
    lines, items = list[str](), list[_Item]()
    fence, blank = "", True
    for line in text.splitlines():
        rest = line.lstrip(" ")
        if not rest:
            lines.append("")
            blank = True
            continue
        column = len(line) - len(rest)
        marker = None if fence else _MARKER.match(rest)
        if not fence and (blank or marker or _FENCE.match(rest)):
            ended = _leave(items, column)
            if marker and not blank and any(item.several for item in ended):
                lines.append("")
        inside = max(column - (items[-1].column if items else 0), 0)
        starts = marker and inside < _INDENT  # otherwise the line is part of a code block
        lines.append(" " * (_INDENT * len(items) + (0 if starts else inside)) + rest)
        if items and blank:
            items[-1].several = True
        if marker and starts:
            items.append(_Item(column + marker.end()))
        blank = False
        if found := _FENCE.match(rest):
            fence = "" if fence and found[1].startswith(fence) else fence or found[1]
    return "\n".join(lines) + "\n"


def _leave(items: list[_Item], column: int) -> list[_Item]:
    """Remove and return the items whose content does not include a line that begins in this column."""
    ended = []
    while items and column < items[-1].column:
        ended.append(items.pop())
    return ended


def links(text: str) -> set[str]:
    """Return the targets of the page's links, except links to headings of the same page."""
    return {target for target in _LINK.findall(text) if not target.startswith("#")}


def with_links(text: str, targets: dict[str, str]) -> str:
    """Replace each link target that is a key of ``targets`` with its value."""
    return _LINK.sub(lambda found: targets.get(found[0], found[0]), text)
