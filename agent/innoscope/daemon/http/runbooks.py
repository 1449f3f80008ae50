"""The runbooks of the alerts, where their ``runbook_url`` leads: /runbooks/NAME; /runbooks is the list."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from innoscope.common.data import folder
from innoscope.daemon.http.server import Request, Response, plain

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def routes() -> dict[str, Callable[[Request], Response]]:
    """A route for each page that there is now: no path is ever made of what a client asks for."""
    pages = {page.stem: page for page in sorted(folder("runbooks").glob("*.md"))}
    listing = "\n".join(f"/runbooks/{name}" for name in pages)
    return {
        "/runbooks": lambda _: plain(listing),
        **{f"/runbooks/{name}": partial(_page, page) for name, page in pages.items()},
    }


def _page(page: Path, _: Request) -> Response:
    """As text, which every browser shows and every pager reads."""
    return Response(page.read_bytes())
