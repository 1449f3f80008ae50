"""Responses for browsers: JSON, compression, caching, and security headers."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from innoscope.common import sanitize
from innoscope.daemon.http.server import Response

if TYPE_CHECKING:
    from collections.abc import Mapping

    from innoscope.daemon.http.server import Request

JSON: Final = "application/json"
#: Bodies of fewer bytes than this are not compressed.
_MIN_BYTES: Final = 1_000
#: Compression level. Higher levels take much more time but save few bytes.
_LEVEL: Final = 5

#: Headers of pages. They allow only scripts, styles and data from this origin: no inline code, no frames.
PAGE_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
#: Headers of HTML reports, whose scripts are inline so that a report can be opened from a file. The sandbox
#: gives a report a unique origin and no network access.
REPORT_HEADERS: Final[Mapping[str, str]] = {
    **PAGE_HEADERS,
    "Content-Security-Policy": (
        "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}
#: Headers of responses that contain data, such as JSON.
DATA_HEADERS: Final[Mapping[str, str]] = {
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def as_json(value: Any, status: HTTPStatus = HTTPStatus.OK) -> Response:
    """Return a response with the value as one line of JSON. Raise ValueError if a number is not finite."""
    text = sanitize.dumps(value, separators=(",", ":"), allow_nan=False)
    return Response(text.encode() + b"\n", JSON, status, DATA_HEADERS)


def compressed(request: Request, response: Response) -> Response:
    """Return the response with a gzip body if the client accepts it and the body is large enough."""
    if len(response.body) < _MIN_BYTES or not accepts_gzip(request):
        return response
    body = gzip.compress(response.body, _LEVEL, mtime=0)
    headers = {**response.headers, "Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return replace(response, body=body, headers=headers)


def accepts_gzip(request: Request) -> bool:
    """Return whether the request's Accept-Encoding includes gzip."""
    names = (part.partition(";") for part in request.headers.get("Accept-Encoding", "").split(","))
    return any(name.strip() == "gzip" and rest.replace(" ", "") != "q=0" for name, _, rest in names)


def unless_cached(request: Request, response: Response) -> Response:
    """Return the response with an ETag, or 304 Not Modified if the client has this version."""
    tag = f'"{hashlib.sha256(response.body).hexdigest()[:16]}"'
    headers = {**response.headers, "Cache-Control": "no-cache", "ETag": tag}
    cached = {one.strip().removeprefix("W/") for one in request.headers.get("If-None-Match", "").split(",")}
    if tag in cached:
        return Response(b"", response.content_type, HTTPStatus.NOT_MODIFIED, headers)
    return replace(response, headers=headers)
