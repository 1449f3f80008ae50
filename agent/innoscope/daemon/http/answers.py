"""Answers to browsers: JSON, compressed where it pays, kept where that is safe, and framed by nobody."""

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
#: Below this the headers weigh more than what is saved; the level is where time grows faster than size falls.
_WORTH_BYTES: Final = 1_000
_LEVEL: Final = 5

#: Of what browsers show as pages: scripts, styles and data from here only, nothing inline, in no frame.
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
#: Of a report that has its scripts in it, to be opened from a file too: it gets an origin of its own, from
#: which it can ask for nothing, neither here nor elsewhere.
REPORT_HEADERS: Final[Mapping[str, str]] = {
    **PAGE_HEADERS,
    "Content-Security-Policy": (
        "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}
#: Of what is only read by programs, and kept by nobody.
DATA_HEADERS: Final[Mapping[str, str]] = {
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def as_json(value: Any, status: HTTPStatus = HTTPStatus.OK) -> Response:
    """A document on one line; numbers in it are finite."""
    text = sanitize.dumps(value, separators=(",", ":"), allow_nan=False)
    return Response(text.encode() + b"\n", JSON, status, DATA_HEADERS)


def packed(request: Request, response: Response) -> Response:
    """The same, compressed, where the client takes that and it pays."""
    if len(response.body) < _WORTH_BYTES or not takes_gzip(request):
        return response
    body = gzip.compress(response.body, _LEVEL, mtime=0)
    headers = {**response.headers, "Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return replace(response, body=body, headers=headers)


def takes_gzip(request: Request) -> bool:
    """Whether the client said so."""
    names = (part.partition(";") for part in request.headers.get("Accept-Encoding", "").split(","))
    return any(name.strip() == "gzip" and rest.replace(" ", "") != "q=0" for name, _, rest in names)


def unless_known(request: Request, response: Response) -> Response:
    """The answer with a tag of its content; only that the client has it already, if it has."""
    tag = f'"{hashlib.sha256(response.body).hexdigest()[:16]}"'
    headers = {**response.headers, "Cache-Control": "no-cache", "ETag": tag}
    known = {one.strip().removeprefix("W/") for one in request.headers.get("If-None-Match", "").split(",")}
    if tag in known:
        return Response(b"", response.content_type, HTTPStatus.NOT_MODIFIED, headers)
    return replace(response, headers=headers)
