"""A webhook on a loopback port that records what it receives, and answers with prepared statuses."""

from __future__ import annotations

import json
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterable


class Webhook:
    """Context manager: a receiver of JSON documents. It accepts files (PUT), too, and ignores them.

    The first requests get ``statuses``, one each, and all others 200. ``received`` contains the documents
    that were answered with 200.
    """

    def __init__(self, statuses: Iterable[int] = ()) -> None:
        self.received: list[Any] = []
        self.requests = 0
        self._statuses = deque(statuses)
        webhook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(webhook._take(document))
                self.send_header("Content-Length", "0")
                self.end_headers()

            def do_PUT(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Write nothing to standard error."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/hook"

    def _take(self, document: Any) -> int:
        self.requests += 1
        status = self._statuses.popleft() if self._statuses else 200
        if status == 200:
            self.received.append(document)
        return status
