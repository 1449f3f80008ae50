"""Links point to existing files and headings. Files named in pages and pages named in sources exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = tuple(
    page
    for folder, pattern in ((".", "*.md"), ("docs", "**/*.md"), ("dashboards", "**/*.md"))
    for page in sorted((ROOT / folder).glob(pattern))
)
#: Directories whose files have comments and messages that refer to pages.
SOURCES = ("agent/innoscope", "agent/native/src", "packaging", "dashboards", "probes", "tests")
#: Suffixes of the files to search.
TEXTS = {".c", ".h", ".js", ".json", ".md", ".py", ".pyi", ".rs", ".service", ".sh", ".toml", ".yaml"}
_FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.M | re.S)
_LINK = re.compile(r"\]\(<?([^)>\s]+)>?(?:\s+\"[^\"]*\")?\)")
_HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.M)
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:")
_FILE = re.compile(r"\b(?:agent|dashboards|docs|packaging|probes|tests)/[\w./-]+\.[a-z]+\b")
_PAGE = re.compile(r"\bdocs/[\w-]+\.md(?:#[\w-]+)?")


def links(text: str) -> list[str]:
    """Return the targets of a page's links; links in code and to other sites are ignored."""
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


def problems(start: Path, link: str) -> list[str]:
    """Return the problems of a link. ``start`` is the page, or the directory that the link is relative to."""
    path, _, anchor = link.partition("#")
    target = ((start if start.is_dir() else start.parent) / path).resolve() if path else start
    if not target.exists() or not target.is_relative_to(ROOT):
        return [f"{link}: no such file"]
    if anchor and anchor not in anchors(target.read_text()):
        return [f"{link}: no such heading"]
    return []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_are_valid(page: Path) -> None:
    assert [problem for link in links(page.read_text()) for problem in problems(page, link)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    folders = (ROOT, page.parent)
    named = sorted(set(_FILE.findall(page.read_text())))
    assert [name for name in named if not any((folder / name).exists() for folder in folders)] == []


def test_pages_and_headings_that_the_sources_name_exist() -> None:
    """Check references such as ``docs/agent.md`` in comments and messages."""
    files = [file for folder in SOURCES for file in (ROOT / folder).rglob("*") if file.suffix in TEXTS]
    named = {name for file in files if file != Path(__file__) for name in _PAGE.findall(file.read_text())}

    assert "docs/agent.md" in named
    assert [problem for name in sorted(named) for problem in problems(ROOT, name)] == []


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


def test_links_and_anchors_are_recognized(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(
        '# One [two](b.md)\n## One\n## One\n[`[[x]]` y](#one-two) [y](a.md#one-1 "t") `[z](none.md)`\n'
        "```\n[w](none.md)\n# no heading\n```\n[v](https://example.net/) ![p](none.png) [q](#nothing)\n"
    )
    text = (tmp_path / "a.md").read_text()

    assert links(text) == ["b.md", "#one-two", "a.md#one-1", "none.png", "#nothing"]
    assert anchors(text) == {"one-two", "one", "one-1"}
