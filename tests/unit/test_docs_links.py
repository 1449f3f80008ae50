"""Relative links of README.md and docs/ point to existing files and headings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
_FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.M | re.S)
_LINK = re.compile(r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(<?([^)>\s]+)>?(?:\s+\"[^\"]*\")?\)")
_HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.M)
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:")


def links(text: str) -> list[str]:
    """Return the targets of the links of a page, except in code."""
    text = re.sub(r"`[^`\n]*`", lambda code: code[0] if "](" not in code[0] else "", _FENCE.sub("", text))
    return [target for target in _LINK.findall(text) if not _ELSEWHERE.match(target)]


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub generates: lower case, no punctuation, numbered if duplicate."""
    found: set[str] = set()
    for heading in _HEADING.findall(_FENCE.sub("", text)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        number = 0
        while (name := f"{slug}-{number}" if number else slug) in found:
            number += 1
        found.add(name)
    return found


def broken(page: Path) -> list[str]:
    found = []
    for link in links(page.read_text()):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or not target.is_relative_to(ROOT):
            found.append(f"{link}: no such file")
        elif anchor and anchor not in anchors(target.read_text()):
            found.append(f"{link}: no such heading")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_are_valid(page: Path) -> None:
    assert broken(page) == []


def test_every_page_is_reachable_through_links() -> None:
    """Follow the links from the README and the index."""
    ahead = [ROOT / "README.md", ROOT / "docs" / "README.md"]
    reached = set(ahead)
    while ahead:
        page = ahead.pop()
        for link in links(page.read_text()):
            target = (page.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md" and target.exists() and target not in reached:
                reached.add(target)
                ahead.append(target)

    assert {page for page in PAGES if page.parent == ROOT / "docs"} - reached == set()


def test_links_and_anchors_are_recognised(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(
        '# One [two](b.md)\n## One\n## One\n[x](#one-two) [y](a.md#one-1 "t") `[z](none.md)`\n'
        "```\n[w](none.md)\n# no heading\n```\n[v](https://example.net/) ![p](none.png) [q](#nothing)\n"
    )
    text = (tmp_path / "a.md").read_text()

    assert links(text) == ["b.md", "#one-two", "a.md#one-1", "none.png", "#nothing"]
    assert anchors(text) == {"one-two", "one", "one-1"}
