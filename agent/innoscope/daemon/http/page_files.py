"""Serve the files of the live page at URLs that contain a digest, so that browsers can cache them forever."""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Final

from innoscope.daemon.http.answers import accepts_gzip
from innoscope.daemon.http.server import Response

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from importlib.abc import Traversable

    from innoscope.daemon.http.server import Request

_PACKAGE: Final = "innoscope.daemon.http.page"
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
    """Return a digest of all files, used as their common URL prefix so that modules can import each other."""
    hasher = hashlib.sha256()
    for name, file in _files():
        hasher.update(name.encode() + b"\0" + file.read_bytes())
    return hasher.hexdigest()[:16]


def base() -> str:
    """Return the URL prefix of the live page's files."""
    return f"/page/{digest()}"


def routes() -> dict[str, Callable[[Request], Response]]:
    """Return a mapping of the files' paths to handlers."""
    return {f"{base()}/{name}": _handler(name, file) for name, file in _files()}


def template() -> str:
    """Return the HTML template of the page."""
    return (resources.files(_PACKAGE) / "index.html").read_text(encoding="utf-8")


def _files() -> Iterator[tuple[str, Traversable]]:
    for folder, prefix in (
        (resources.files(_PACKAGE), ""),
        (resources.files(_PACKAGE) / "vendor", "vendor/"),
    ):
        for file in sorted(folder.iterdir(), key=lambda one: one.name):
            if _suffix(file.name) in _TYPES:
                yield prefix + file.name, file


def _suffix(name: str) -> str:
    return name[name.rfind(".") :]


def _handler(name: str, file: Traversable) -> Callable[[Request], Response]:
    @cache
    def content(compress: bool) -> bytes:
        return gzip.compress(file.read_bytes(), 9, mtime=0) if compress else file.read_bytes()

    def handle(request: Request) -> Response:
        compress = accepts_gzip(request)
        headers = {**_HEADERS, "Content-Encoding": "gzip"} if compress else _HEADERS
        return Response(content(compress), _TYPES[_suffix(name)], headers=headers)

    return handle
