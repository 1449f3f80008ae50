"""Serve the files of the live page at URLs that contain a digest, so that browsers can cache them forever."""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from innoscope.daemon.http.answers import accepts_gzip
from innoscope.daemon.http.server import Response

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from innoscope.daemon.http.server import Request

_FOLDER: Final = Path(__file__).parent / "page"
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS: Final[Mapping[str, str]] = {
    "Cache-Control": "public, max-age=31536000, immutable",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Vary": "Accept-Encoding",
}


@cache
def digest() -> str:
    """Return one digest of all files, for their common URL prefix, so that modules can import each other."""
    hasher = hashlib.sha256()
    for name, file in _files():
        hasher.update(name.encode() + b"\0" + file.read_bytes())
    return hasher.hexdigest()[:16]


def base() -> str:
    """Return the URL prefix of the live page's files."""
    return f"/page/{digest()}"


def routes() -> dict[str, Callable[[Request], Response]]:
    """Return a mapping of the files' paths to handlers."""
    return {f"{base()}/{name}": _handler(file) for name, file in _files()}


def template() -> str:
    """Return the HTML template of the page."""
    return (_FOLDER / "index.html").read_text(encoding="utf-8")


def _files() -> Iterator[tuple[str, Path]]:
    for folder in (_FOLDER, _FOLDER / "vendor"):
        for file in sorted(folder.iterdir()):
            if file.suffix in _TYPES:
                yield file.relative_to(_FOLDER).as_posix(), file


def _handler(file: Path) -> Callable[[Request], Response]:
    @cache
    def content(compress: bool) -> bytes:
        return gzip.compress(file.read_bytes(), 9, mtime=0) if compress else file.read_bytes()

    def handle(request: Request) -> Response:
        compress = accepts_gzip(request)
        headers = {**_HEADERS, "Content-Encoding": "gzip"} if compress else _HEADERS
        return Response(content(compress), _TYPES[file.suffix], headers=headers)

    return handle
