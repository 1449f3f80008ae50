"""A fake agent, which serves prepared incidents and their files over HTTP."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit


class FakeAgent:
    """Context manager: an agent on a loopback port. ``contents`` maps file names to contents.

    The next ``busy`` requests get the status 503. If ``authorization`` is set, requests with another header
    get 401.
    """

    def __init__(self, incidents: Any, contents: dict[str, bytes]) -> None:
        self.incidents, self.contents = incidents, contents
        self.requests: list[str] = []
        self.authorization: str | None = None
        self.busy = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = outer.answer(self.path, self.headers.get("Authorization"))
                self.send_response(status)
                if status == 503:
                    self.send_header("Retry-After", "0")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with suppress(ConnectionError):  # a client that has read enough closes the connection
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Write nothing to standard error."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def answer(self, path: str, authorization: str | None) -> tuple[int, bytes]:
        self.requests.append(path)
        if self.busy:
            self.busy -= 1
            return 503, b"too many requests"
        if self.authorization is not None and authorization != self.authorization:
            return 401, b"user and password required"
        names = parse_qs(urlsplit(path).query).get("file")
        if names is None:
            text = (
                self.incidents if isinstance(self.incidents, bytes) else json.dumps(self.incidents).encode()
            )
            return 200, text
        return (200, self.contents[names[0]]) if names[0] in self.contents else (404, b"no such file")

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
