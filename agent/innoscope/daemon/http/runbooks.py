"""Serve the runbooks that the alerts refer to (``runbook_url``): /runbooks/NAME, and a list at /runbooks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from innoscope.common.data import folder
from innoscope.daemon.http.server import Request, Response, plain_lines

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def routes() -> dict[str, Callable[[Request], Response]]:
    """Return a route for each existing runbook. Paths sent by clients are never used as file names."""
    pages = {page.stem: page for page in sorted(folder("runbooks").glob("*.md"))}
    listing = [f"/runbooks/{name}" for name in pages]
    return {
        "/runbooks": lambda _: plain_lines(listing),
        **{f"/runbooks/{name}": partial(_page, page) for name, page in pages.items()},
    }


def _page(page: Path, _: Request) -> Response:
    """Serve a runbook as plain text."""
    return Response(page.read_bytes())
