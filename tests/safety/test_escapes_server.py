"""Test that hostile names in a real server do not control the user's terminal."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from safety.agenting import Running
from safety.hostile import EVIL, SHOWN
from safety.sensing import Sensing
from safety.terminal import run_on_terminal, violations, without_colors
from scale import few, long
from servers import Server
from waiting import until
from workloads.crowd import Crowd

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_EVIL = EVIL.replace(b"\xff", b"").decode()  # the server rejects invalid UTF-8
_USER = _EVIL[:16]  # short enough for every server
_WAITERS = 3


@pytest.fixture(
    scope="module",
    params=few(["mariadb-10.11", "mysql-9.7"], "mysql-9.7", reason="its performance schema has more names"),
)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(request.param) as server, contextlib.ExitStack() as stack:
        for statement in (
            f"CREATE DATABASE `{_EVIL}`",
            f"CREATE TABLE `{_EVIL}`.`{_EVIL}` (id INT PRIMARY KEY, `{_EVIL}` INT) ENGINE=InnoDB",
            f"INSERT INTO `{_EVIL}`.`{_EVIL}` VALUES (1, 1)",
            f"CREATE USER '{_USER}'@'localhost'",
            f"GRANT ALL ON *.* TO '{_USER}'@'localhost'",
            "SET GLOBAL innodb_lock_wait_timeout = 600",
        ):
            _run(server, statement)
        change = f"UPDATE `{_EVIL}` SET `{_EVIL}` = `{_EVIL}` + 1 /* {_EVIL} */ WHERE id = 1"
        hostile = _As(server)
        holder = Crowd(hostile, 1, _EVIL, ("SET NAMES utf8", "BEGIN", change))  # type: ignore[arg-type]
        stack.enter_context(holder)
        waiters = Crowd(hostile, _WAITERS, _EVIL, ("SET NAMES utf8",))  # type: ignore[arg-type]
        stack.enter_context(waiters).send(change)
        waiting = "SELECT COUNT(*) FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'"
        # INNODB_TRX is refreshed only if it has not been read for 0.1 s.
        until(lambda: _run(server, waiting)[0][0] == _WAITERS, every_s=0.15)
        yield server


class _As:
    """A wrapper around the server that connects as the hostile user."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def connect(self, **changes: object) -> object:
        return self._server.connect(user=_USER, **changes)


def _run(server: Server, statement: str) -> tuple[tuple[object, ...], ...]:
    with contextlib.closing(server.connect(charset="utf8")) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        return tuple(cursor.fetchall())


@pytest.mark.parametrize(
    "arguments",
    [
        ("stacks", "--queries", "--all", "--by", "thread"),
        ("stacks", "--queries", "--json"),
        ("stacks", "--queries", "--format", "html"),
        ("diagnose", "--seconds", "2"),
        ("diagnose", "--seconds", "2", "--json"),
    ],
    ids=" ".join,
)
def test_names_of_users_schemas_and_columns_are_escaped(server: Server, arguments: tuple[str, ...]) -> None:
    shows = ("--pid", str(server.pid))
    output = run_on_terminal([*arguments, *shows], {})

    assert not violations(output, without_colors), output[-3000:]
    # In HTML, only statements contain such names. MariaDB's end before them, because the session's mode is
    # unknown (docs/digests.md).
    has_names = "html" not in arguments or server.name == "mysql-9.7"
    assert any(text in output.decode() for text in SHOWN) == has_names, output[-3000:]


_PAGES = (
    "/", "/metrics", "/api/status", "/api/incidents",
    "/api/findings", "/api/findings?format=text", "/api/sessions", "/api/flame",
    *(f"/api/stacks?format={form}" for form in ("text", "tree", "folded", "json", "speedscope", "html")),
)  # fmt: skip


def test_http_responses_are_escaped(server: Server) -> None:
    """Check what curl would write to a terminal."""
    with Sensing(only=[server]) as sensing, Running(server, sensor=sensing.path) as agent:
        until(lambda: any(text.encode() in agent.get("/api/findings?format=text")[1] for text in SHOWN))
        until(lambda: agent.get("/api/sessions")[0] == agent.get("/api/stacks")[0] == 200)
        pages = {path: agent.get(path) for path in _PAGES}

    for path, (status, body) in pages.items():
        assert status == 200, (path, body)
        assert not violations(body), (path, violations(body))


@long("tests/safety/test_escapes.py has incident files")
def test_names_in_an_incident_file_are_escaped(server: Server, tmp_path: Path) -> None:
    file = str(tmp_path / "a.innoscope")
    said = run_on_terminal(["diagnose", "--seconds", "2", "--pid", str(server.pid), "--save", file], {})
    for show in ("findings", "stacks", "folded", "metrics", "status", "variables"):
        said += run_on_terminal(["diagnose", file, "--show", show], {})
    said += run_on_terminal(["diff", file, file], {}) + run_on_terminal(["diagnose", file, "--json"], {})

    assert not violations(said, without_colors)
    assert any(text in said.decode() for text in SHOWN)
