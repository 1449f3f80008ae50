"""A connection that is not answered in time is remembered until the server closes it."""

from __future__ import annotations

import os
import socket
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import pytest

from innoscope.common.errors import SqlFailed
from innoscope.daemon.agent.config import Config
from innoscope.daemon.agent.servers import Servers
from innoscope.metrics.collectors.sql_failures import explain
from innoscope.target import sql, unanswered
from innoscope.target.proc import ProcFs
from innoscope.target.unanswered import Unanswered
from unit.snapshots import target
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from innoscope.target.model import Target


def left(kept: Unanswered) -> socket.socket:
    """Give ``kept`` a connection to keep, and return the server's end of it."""
    ours, theirs = socket.socketpair()
    with ours:
        kept.keep(ours)
    theirs.settimeout(5)
    return theirs


def test_server_is_told_and_may_answer_until_it_closes_the_connection() -> None:
    kept = Unanswered()
    with closing(kept):
        kept.check()
        with left(kept) as server:
            assert server.recv(1) == b""
            server.sendall(b"a late answer")
            with pytest.raises(SqlFailed) as caught:
                kept.check()
            assert explain(caught.value).reason == "timeout"
        kept.check()


def test_reset_connection_has_ended() -> None:
    kept = Unanswered()
    with closing(kept), socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as ours:
            kept.keep(ours)
        server, _ = listener.accept()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        server.close()
        kept.check()


def test_several_connections_may_be_allowed() -> None:
    kept = Unanswered(2)
    with closing(kept), left(kept):
        kept.check()
        with left(kept), pytest.raises(SqlFailed):
            kept.check()
        kept.check()


def test_peer_that_never_stops_sending_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unanswered, "_MAX_BYTES", 10_000)
    kept = Unanswered()
    with closing(kept), left(kept) as server:
        server.sendall(bytes(20_000))
        kept.check()
        with pytest.raises(BrokenPipeError):
            server.sendall(b"x")


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[tuple[Target, socket.socket]]:
    """Yield a target for this process, and its listening socket, on which nothing answers."""
    path = tmp_path / "s"
    begun = ProcFs().stat(os.getpid()).start_time
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(0)
        yield target(pid=os.getpid(), start_time=begun, socket=str(path)), listener


def accepted(listener: socket.socket) -> list[socket.socket]:
    """Accept all pending connections, and return them."""
    found = []
    with suppress(BlockingIOError):
        while True:
            found.append(listener.accept()[0])
    return found


def test_server_that_does_not_answer_gets_one_connection(silent: tuple[Target, socket.socket]) -> None:
    own, listener = silent
    kept = Unanswered()
    with closing(kept):
        for _ in range(3):
            with pytest.raises(SqlFailed):
                sql.connect(own, timeout=0.05, unanswered=kept)
        [first] = accepted(listener)
        first.close()
        with pytest.raises(SqlFailed):
            sql.connect(own, timeout=0.05, unanswered=kept)
        [second] = accepted(listener)
        second.close()


def test_agent_leaves_four_connections_to_a_server_that_does_not_answer(
    silent: tuple[Target, socket.socket],
) -> None:
    own, listener = silent
    servers = Servers(Config())
    server = servers.register_from_sensor("orders", own)
    assert server is not None
    channel = server.channel
    assert channel is not None
    with closing(servers.workers), closing(channel):
        channel.start(0.1)
        assert not any(outcome.success for outcome in channel.outcomes())
        for _ in range(4):
            with pytest.raises(SqlFailed):
                channel.connect(0.05)
        left: list[socket.socket] = []

        def complete() -> bool:
            left.extend(accepted(listener))
            return len(left) >= 4

        until(complete)
        for connection in left:
            connection.close()
    assert len(left) == 4
