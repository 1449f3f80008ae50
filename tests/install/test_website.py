"""Check the website's strict build without network access, page structure, search index and versions."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from distribution import environment
from servers import cache
from website import __main__ as website
from website import commonmark

ROOT = Path(__file__).parents[2]
PAGES = {page: f"{page.stem}.html" for page in sorted((ROOT / "docs").glob("*.md")) if page.stem != "README"}
PAGES |= {
    ROOT / "README.md": "index.html",
    ROOT / "docs/README.md": "pages.html",
    ROOT / "CHANGELOG.md": "changes.html",
}
PAGES |= {page: f"runbooks/{page.stem}.html" for page in sorted((ROOT / "dashboards/runbooks").glob("*.md"))}
#: Elements that must occur as often as on a code host's page.
_COUNTED = {"h1", "h2", "h3", "h4", "li", "ol", "ul", "pre", "table", "td", "strong", "em"}
#: Elements and attributes whose URLs a browser loads with the page.
_LOADING = {("script", "src"), ("img", "src"), ("link", "href")}


class Page(HTMLParser):
    """The elements of a page (or of its element ``only``), with their depth in lists, and the URLs in it."""

    def __init__(self, text: str, *, only: str = "") -> None:
        super().__init__()
        self.elements: Counter[tuple[str, int]] = Counter()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self._only, self._inside, self._depth = only, not only, 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = self._inside or tag == self._only
        self.loaded += [value or "" for name, value in attrs if (tag, name) in _LOADING]
        if self._inside and tag in _COUNTED:
            self.elements[tag, self._depth] += 1
            self._depth += tag == "li"
        if self._inside and tag == "a":
            self.links += [value or "" for name, value in attrs if name == "href"]

    def handle_endtag(self, tag: str) -> None:
        self._depth -= self._inside and tag == "li"
        self._inside = self._inside and tag != self._only


@pytest.fixture(scope="module")
def tools() -> Path:
    return environment.install(website.REQUIREMENTS, cache.root() / "tools")


@pytest.fixture(scope="module")
def site(tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site without network access, and return its directory."""
    out = tmp_path_factory.mktemp("site") / "0.1.0"
    website.build(tools, out, prefix=("unshare", "--net"))
    return out


def test_pages_have_the_structure_that_code_hosts_show(site: Path) -> None:
    """Compare headings, lists, code blocks and tables with the output of another Markdown implementation."""
    reference = MarkdownIt("commonmark").enable("table")
    expected = {page: Page(reference.render(page.read_text())).elements for page in PAGES}

    shown = {page: Page((site / html).read_text(), only="article").elements for page, html in PAGES.items()}
    assert shown == expected


def test_links_to_other_folders_lead_to_pages(site: Path) -> None:
    links = Page((site / "alerts.html").read_text(), only="article").links
    links += Page((site / "install.html").read_text(), only="article").links

    assert {"runbooks/InnoscopeServerDown.html", "source/packaging/account.sql.html"} <= set(links)
    assert "GRANT" in (site / "source/packaging/account.sql.html").read_text()
    assert "alerts.html" in Page((site / "index.html").read_text(), only="article").links


def test_nothing_is_loaded_from_other_sites(site: Path) -> None:
    loaded = {url for page in site.rglob("*.html") for url in Page(page.read_text()).loaded}

    assert any(url.endswith(".css") for url in loaded)
    assert [url for url in sorted(loaded) if ":" in url or url.startswith("//")] == []


def test_pages_can_be_found_by_search_and_sources_cannot(site: Path) -> None:
    entries = json.loads((site / "search/search_index.json").read_text())["docs"]
    places = {entry["location"] for entry in entries}

    assert {"install.html#signatures", "runbooks/InnoscopeServerDown.html"} <= places
    assert [place for place in places if place.startswith("source/")] == []


def test_warnings_fail_the_build(tools: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Build with a navigation that lacks all pages except one."""
    configuration = tmp_path / "mkdocs.yml"
    configuration.write_text(
        f"INHERIT: {website.CONFIGURATION}\ndocs_dir: {ROOT}/docs\nhooks: [{website.FOLDER}/hooks.py]\n"
        "nav: [{Start: [tour.md]}]\n"
    )

    with pytest.raises(subprocess.CalledProcessError):
        website.build(tools, tmp_path / "out", configuration=configuration)
    assert "install.md" in capfd.readouterr().err


def test_versions_are_listed_newest_first(tmp_path: Path) -> None:
    for version in ("0.9.0", "0.10.0", "0.10.1"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "index.html").touch()

    start = website.write_versions(tmp_path)

    listed = json.loads((tmp_path / "versions.json").read_text())
    assert [entry["version"] for entry in listed] == ["0.10.1", "0.10.0", "0.9.0"]
    assert "url=0.10.1/index.html" in start.read_text()


def test_content_of_list_items_is_indented_by_four_columns() -> None:
    text = (
        "1. a\n   b\n\n       code\n\n   - c\n     d\n2. e\nlazy\n\n- f\n  ```\n   x\n  ```\n\n      code\n"
    )

    assert commonmark.indent_lists(text) == (
        "1. a\n    b\n\n        code\n\n    - c\n        d\n\n2. e\n    lazy\n\n"
        "- f\n    ```\n     x\n    ```\n\n        code\n"
    )
