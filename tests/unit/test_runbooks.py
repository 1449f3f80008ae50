"""Runbooks are served over HTTP. tests/safety/test_web_requests.py shows that no other file is served."""

from __future__ import annotations

import http.client
import threading
from typing import TYPE_CHECKING

import pytest

from innoscope.common.data import folder
from innoscope.daemon.http import runbooks
from innoscope.daemon.http.server import ListenAddress, WebServer
from innoscope.daemon.http.web_config import Watched

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    server = WebServer(ListenAddress.parse("127.0.0.1:0"), runbooks.routes(), Watched(None))
    threading.Thread(target=server.serve, daemon=True).start()
    yield server.port
    server.stop()


def get(port: int, path: str) -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read().decode()
    finally:
        connection.close()


def test_every_page_is_served_as_text(port: int) -> None:
    status, _, listing = get(port, "/runbooks")
    assert status == 200
    paths = listing.split()
    assert len(paths) == len(list(folder("runbooks").glob("*.md"))) > 30
    for path in paths:
        status, kind, text = get(port, path)
        assert (status, kind) == (200, "text/plain; charset=utf-8")
        assert text.startswith(f"# {path.removeprefix('/runbooks/')}\n")


@pytest.mark.parametrize("page", sorted(folder("runbooks").glob("*.md")), ids=lambda page: page.stem)
def test_first_command_is_diagnose(page: Path) -> None:
    _, _, confirm = page.read_text().partition("\n## How to confirm\n")
    commands = [line.strip() for line in confirm.splitlines() if line.startswith("    ")]
    assert commands[0].startswith("sudo innoscope diagnose")
