"""Add pages from folders other than docs/ to the site, and make all links point to pages of the site.

The pages are written for code hosts: their links point to files of the repository, such as
../packaging/account.sql. The site has a page for each of these files. mkdocs calls the functions ``on_…``.
"""

from __future__ import annotations

import os.path
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

from website import commonmark

ROOT = Path(__file__).resolve().parents[2]
#: The site's pages from other folders, and the index of docs/, which is not the site's start page.
_PAGES = {
    "README.md": "index.md",
    "docs/README.md": "pages.md",
    "CHANGELOG.md": "changes.md",
    "SECURITY.md": "security-policy.md",
    **{
        f"dashboards/runbooks/{path.name}": f"runbooks/{path.name}"
        for path in sorted((ROOT / "dashboards/runbooks").glob("*.md"))
    },
}
_RUNBOOKS = {"Runbooks": "runbooks/*.md"}
#: Front matter of the pages that show source files. It excludes these pages from the search.
_UNSEARCHED = "---\nsearch: {exclude: true}\n---\n"


def on_config(config: Any) -> Any:
    """List the runbooks in the navigation."""
    pages = [page for page in _PAGES.values() if page.startswith("runbooks/")]
    for section in config.nav:
        for entries in section.values():
            entries[:] = [{"Runbooks": pages} if entry == _RUNBOOKS else entry for entry in entries]
    return config


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages from other folders, and a page for each source file that a page links to."""
    files.remove(files.get_file_from_path("README.md"))
    for path, page in _PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / path)))
    for source in sorted({source for file in files.documentation_pages() for source in _sources(file)}):
        page = File.generated(
            config, _page(source), content=_listing(source), inclusion=InclusionLevel.NOT_IN_NAV
        )
        files.append(page)
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Replace the page's links, and indent its lists as Python-Markdown expects."""
    if page.file.abs_src_path is None:
        return markdown
    folder = Path(page.file.abs_src_path).parent
    targets = {}
    for target in commonmark.links(markdown):
        path, mark, anchor = target.partition("#")
        found = (folder / path).resolve()
        if found.exists() and found.is_relative_to(ROOT):
            uri = os.path.relpath(_page(found), Path(page.file.src_uri).parent)
            targets[target] = uri + mark + anchor
    return commonmark.indent_lists(commonmark.with_links(markdown, targets))


def _sources(page: File) -> set[Path]:
    """Return the files and folders outside docs/ that the page links to and that are not pages."""
    path = Path(page.abs_src_path)
    targets = (
        (path.parent / link.partition("#")[0]).resolve() for link in commonmark.links(path.read_text())
    )
    return {target for target in targets if target.exists() and _page(target).startswith("source/")}


def _page(path: Path) -> str:
    """Return the path on the site for a file or folder in the repository."""
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""
    if name in _PAGES:
        return _PAGES[name]
    return name.removeprefix("docs/") if name.startswith("docs/") else f"source/{name}.md"


def _listing(source: Path) -> str:
    """Return a page that shows a file, or the names of the files in a folder."""
    name = source.relative_to(ROOT).as_posix()
    if source.is_dir():
        files = sorted(path.name for path in source.iterdir() if path.is_file())
        return f"{_UNSEARCHED}# {name}/\n\n" + "".join(f"- {file}\n" for file in files)
    fence = "~~~~~~"
    return f"{_UNSEARCHED}# {name}\n\n{fence} {source.suffix[1:]}\n{source.read_text()}\n{fence}\n"
