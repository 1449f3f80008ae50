"""The files of the live page: named by what is in them, so that browsers may keep them for good."""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Final

from innoscope.daemon.http.answers import takes_gzip
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
    """Of all files together: what their addresses have in them, so that modules can name each other."""
    found = hashlib.sha256()
    for name, file in _files():
        found.update(name.encode() + b"\0" + file.read_bytes())
    return found.hexdigest()[:16]


def base() -> str:
    """What their addresses begin with."""
    return f"/page/{digest()}"


def routes() -> dict[str, Callable[[Request], Response]]:
    """Address → what answers."""
    return {f"{base()}/{name}": _answering(name, file) for name, file in _files()}


def template() -> str:
    """The page itself."""
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


def _answering(name: str, file: Traversable) -> Callable[[Request], Response]:
    @cache
    def content(packed: bool) -> bytes:
        return gzip.compress(file.read_bytes(), 9, mtime=0) if packed else file.read_bytes()

    def answer(request: Request) -> Response:
        packed = takes_gzip(request)
        headers = {**_HEADERS, "Content-Encoding": "gzip"} if packed else _HEADERS
        return Response(content(packed), _TYPES[_suffix(name)], headers=headers)

    return answer
