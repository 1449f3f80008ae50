"""A server that greets lives; one that is silent, or hangs up, does not."""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from innoscope.target.discover import identify
from innoscope.target.greeting import answers
from innoscope.target.proc import ProcFs

if TYPE_CHECKING:
    from pathlib import Path

    from innoscope.target.model import Target

GREETING = b"\x4a\x00\x00\x00\x0a5.6.24\x00"
TOO_MANY = b"\x17\x00\x00\x00\xff\x10\x04Too many connections"


def _target(path: Path | None, port: int | None = None) -> Target:
    return replace(identify(ProcFs(), os.getpid()), socket=str(path) if path else None, port=port)


@pytest.mark.parametrize(
    ("says", "lives"),
    [(GREETING, True), (TOO_MANY, True), (b"", False), (b"\x01", False), (b"HTTP/1.1 200 OK", False)],
)
def test_what_it_says_first(tmp_path: Path, says: bytes, lives: bool) -> None:
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(says)

        server = threading.Thread(target=serve)
        server.start()
        assert answers(_target(path), 5) is lives
        server.join()


def test_a_server_that_stands_still(tmp_path: Path) -> None:
    """The kernel takes the connection for it; nobody speaks."""
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        assert answers(_target(path), 0.05) is False


def test_nobody_listens(tmp_path: Path) -> None:
    assert answers(_target(tmp_path / "none.sock"), 1) is None
    assert answers(_target(tmp_path / "no folder" / "none.sock"), 1) is None
    assert answers(_target(None), 1) is None


def test_over_tcp_where_there_is_no_socket() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert answers(_target(None, port), 0.05) is False
