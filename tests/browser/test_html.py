"""Open the HTML report from a file in a real browser without network access.

Check that the report is drawn, and that zoom and search work.
"""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from innoscope.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from servers import Server

#: Command line: no network access, no first-run pages, and no sandbox, which root cannot use.
CHROMIUM = [
    "chromium",
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--virtual-time-budget=3000",
]

#: User actions after the page has loaded: click a frame, then search in the table.
ACTIONS = """
<script>
addEventListener("load", () => {
  const shown = () => [...document.querySelectorAll("svg #frames g rect")]
    .filter(rect => !rect.parentElement.classList.contains("hide") && rect.getBBox().width > 0).length;
  const before = shown();
  const frame = [...document.querySelectorAll("svg #frames g")]
    .find(group => group.querySelector("title").textContent.startsWith("do_command"));
  frame.dispatchEvent(new MouseEvent("click", {bubbles: true}));
  const after = shown();
  const search = document.querySelector("input");
  search.value = "do_command";
  search.dispatchEvent(new Event("input", {bubbles: true}));
  const rows = [...document.querySelectorAll("tr")]
    .filter(row => row.offsetParent && /‹/.test(row.textContent));
  document.title = JSON.stringify({before, after, rows: rows.length,
    all: rows.every(row => row.textContent.includes("do_command"))});
});
</script>
"""


@pytest.fixture
def page(server: Callable[[str], Server], tmp_path: Path) -> Path:
    """Return the path of a report about a server with a few connections."""
    one = server("mariadb-11.4.5")
    path = tmp_path / "stacks.html"
    with one.connect(), one.connect():
        assert main(["stacks", "--pid", str(one.pid), "--format", "html", "--output", str(path)]) == 0
    return path


def browse(page: Path, profile: Path) -> str:
    """Return the document as HTML after its scripts have run."""
    command = [*CHROMIUM, f"--user-data-dir={profile}", "--dump-dom", page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout


def test_report_references_nothing_external(page: Path) -> None:
    text = page.read_text()
    assert not re.findall(r"""(?:src|href)\s*=\s*["'](?!#|data:)[^"']+""", text)
    assert not re.findall(r"url\((?!#|[\"']?#|data:)", text)
    assert "@import" not in text


def test_click_zooms_and_search_filters(page: Path, tmp_path: Path) -> None:
    page.write_text(page.read_text().replace("</body>", ACTIONS + "</body>"))
    document = browse(page, tmp_path / "profile")
    title = re.search(r"<title>({.*?})</title>", document)
    assert title, document[:500]
    seen = dict(re.findall(r'"(\w+)":(\w+)', title[1]))
    assert int(seen["before"]) > int(seen["after"]) > 0
    assert int(seen["rows"]) >= 1
    assert seen["all"] == "true"
