"""Test accounts, errors with their remedies, and the mapping of threads to statements, without a server."""

from __future__ import annotations

import os
import pwd
import socket
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pymysql
import pytest

from innoscope.common.errors import BadFile, SqlFailed
from innoscope.target import credentials, sql, unix_socket
from innoscope.target.proc import ProcFs
from unit import snapshots

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from innoscope.target.model import Target


def target(**changes: Any) -> Target:
    """Return a target for this process, without a socket or port."""
    own: dict[str, Any] = {
        "pid": os.getpid(), "start_time": 1, "version": (9, 7, 4), "version_text": "9.7.4",
        "version_from": "memory", "build_id": None, "socket": None, "port": None, "datadir": None,
        "threads": 1,
    }  # fmt: skip
    return snapshots.target(**own | changes)


class Cursor:
    """A fake cursor that returns the same rows for every statement, or raises the error."""

    def __init__(self, answer: list[tuple[Any, ...]] | Exception) -> None:
        self.answer = answer

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def execute(self, _statement: str) -> None:
        if isinstance(self.answer, Exception):
            raise self.answer

    def fetchall(self) -> list[tuple[Any, ...]]:
        assert not isinstance(self.answer, Exception)
        return self.answer

    def fetchone(self) -> tuple[str, str]:
        return ("Threads_connected", "30")


class Connection:
    user = b"dba"
    where = "db1:3306"
    server_version = "9.7.4"

    def thread_id(self) -> int:
        return 99

    def __init__(self, answer: list[tuple[Any, ...]] | Exception) -> None:
        self.answer = answer

    def cursor(self) -> Cursor:
        return Cursor(self.answer)


def test_the_account_comes_from_the_option_file(tmp_path: Path) -> None:
    file = tmp_path / "my.cnf"
    file.write_text(
        '# c\n[mysqld]\nuser=mysql\n[client]\nuser = app\npassword="p#1"\n'
        "[client-innoscope]\nuser=innoscope\n!include x\n"
    )
    found = credentials.find(str(file))
    assert (found.user, found.password) == ("innoscope", "p#1")
    assert "p#1" not in repr(found)
    assert credentials.find(str(file), "other").user == "other"


@pytest.mark.parametrize(
    ("uid", "name"),
    [(0, "root"), (pwd.getpwnam("nobody").pw_uid, "nobody"), (2_000_000_001, "2000000001")],
)
def test_the_default_account_is_the_effective_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, uid: int, name: str
) -> None:
    monkeypatch.setattr(credentials, "DEFAULT_FILES", (tmp_path / "none",))
    for variable in ("LOGNAME", "USER"):
        monkeypatch.setenv(variable, "ann")
    monkeypatch.setattr("os.geteuid", lambda: uid)
    assert credentials.find() == credentials.Credentials(name, "")


def test_a_world_writable_or_missing_option_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "my.cnf"
    file.write_text("[client]\npassword=x\n")
    file.chmod(0o666)
    with pytest.raises(BadFile) as caught:
        credentials.find(str(file))
    assert caught.value.remedy == f"chmod 600 {file}"
    with pytest.raises(BadFile, match="no such file"):
        credentials.find(str(tmp_path / "none"))


def test_each_server_version_has_its_statement() -> None:
    assert "THREAD_OS_ID" in sql.query_for("mysql", (5, 7, 0)).sql
    assert "TID" in sql.query_for("mysql", (5, 6, 24)).sql
    assert "TID" in sql.query_for("mariadb", (10, 11, 19)).sql
    assert "TID" in sql.query_for("mariadb", ()).sql
    assert "TID" in sql.query_for("mysql", ()).sql


def test_every_server_has_a_query(tmp_path: Path) -> None:
    file = tmp_path / "thread_queries.yaml"
    file.write_text('version: 1\nqueries: [{mysql: "5.7+", needs: process, sql: SELECT 1}]')
    with pytest.raises(BadFile, match="the last query must be for all servers"):
        sql.load(file)


def test_digests_are_preferred_and_the_innermost_statement_wins() -> None:
    rows = [
        (70, 7, "app", "h", "db", "Query", "", 3, "CALL `p` ( ? )", "call p(1)"),
        (70, 7, "app", "h", "db", "Query", "updating", 3, "UPDATE `t` SET ...", None),
        (80, 8, "app", "h", None, "Query", None, 0, None, "select 'secret'"),
        (90, 9, b"root", "h", None, "Sleep", None, 60, None, None),
    ]
    found = sql.queries(target(), Connection(rows))  # type: ignore[arg-type]
    assert found[70].digest_text == "UPDATE `t` SET ..."
    assert found[70].state == "updating"
    assert found[80].digest_text == "SELECT ?"
    assert (found[90].user, found[90].digest_text, found[90].seconds) == ("root", None, 60)


def test_a_server_without_thread_ids_is_reported() -> None:
    unknown = pymysql.err.OperationalError(1054, "Unknown column 'TID' in 'field list'")
    with pytest.raises(SqlFailed, match=r"this server \(5\.6\.24\) does not report OS thread ids"):
        sql.queries(target(version=(5, 6, 24)), Connection(unknown))  # type: ignore[arg-type]


def test_an_empty_result_names_the_missing_privilege() -> None:
    with pytest.raises(SqlFailed) as caught:
        sql.queries(target(), Connection([]))  # type: ignore[arg-type]
    assert "GRANT SELECT ON performance_schema.* TO 'dba'" in (caught.value.remedy or "")


def test_an_account_that_sees_only_itself_is_reported() -> None:
    rows = [(70, 99, "app", "h", "db", "Query", "", 0, None, None)]
    with pytest.raises(SqlFailed, match="dba can see only its own thread") as caught:
        sql.queries(target(flavour="mariadb"), Connection(rows))  # type: ignore[arg-type]
    assert caught.value.remedy == "GRANT PROCESS ON *.* TO 'dba'@'localhost'"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (1040, "too many connections"),
        (1045, "access denied for ann"),
        (2013, "did not answer in time"),
        (9999, "answered: server's {words}"),
    ],
)
def test_connection_errors_are_one_line_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, code: int, words: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise pymysql.err.OperationalError(code, "server's {words}")

    monkeypatch.setattr(sql, "_wire", refuse)
    with pytest.raises(SqlFailed, match=words) as caught:
        sql.connect(target(socket="/run/x.sock"), user="ann")
    assert "\n" not in caught.value.what
    assert caught.value.remedy


def test_the_remedy_for_a_blocked_host_works_on_all_servers() -> None:
    """Check that FLUSH HOSTS, which MySQL 8.4 removed, is not suggested."""
    blocked = pymysql.err.OperationalError(1129, "Host is blocked because of many connection errors")
    with pytest.raises(SqlFailed) as caught:
        sql.table(Connection(blocked), "SELECT 1")  # type: ignore[arg-type]
    assert "mysqladmin flush-hosts" in (caught.value.remedy or "")
    assert "FLUSH HOSTS" not in (caught.value.remedy or "")


@pytest.mark.parametrize(
    ("needed", "granted"),
    [
        ("the PROCESS privilege(s)", "PROCESS"),
        ("(at least one of) the SUPER, REPLICATION CLIENT privilege(s)", "REPLICATION CLIENT"),
        ("(at least one of) the SUPER, SLAVE MONITOR privilege(s)", "SLAVE MONITOR"),
        ("the SUPER privilege(s)", "PROCESS"),
    ],
)
def test_the_privilege_that_the_server_names_is_the_remedy(needed: str, granted: str) -> None:
    denied = pymysql.err.OperationalError(1227, f"Access denied; you need {needed} for this operation")
    with pytest.raises(SqlFailed) as caught:
        sql.table(Connection(denied), "SHOW SLAVE STATUS")  # type: ignore[arg-type]
    assert caught.value.remedy == f"GRANT {granted} ON *.* TO 'dba'@'localhost'"


@pytest.mark.parametrize("read", [sql.rows, sql.table])
def test_an_error_of_a_statement_names_the_address_of_the_server(read: Callable[..., object]) -> None:
    with pytest.raises(SqlFailed) as caught:
        read(Connection(pymysql.err.OperationalError(2013, "Lost connection")), "SHOW STATUS")
    assert caught.value.what == "no SQL: the server at db1:3306 did not answer in time"


def test_a_server_without_sockets_is_refused() -> None:
    with pytest.raises(SqlFailed, match="listens on no socket"):
        sql.connect(target())


def test_a_server_that_accepts_but_never_answers_times_out(tmp_path: Path) -> None:
    path = tmp_path / ("long" * 30) / "my.sock"  # longer than sun_path, so it is opened through a descriptor
    path.parent.mkdir()
    with closing(socket.socket(socket.AF_UNIX)) as listener, unix_socket._short(str(path)) as reachable:
        assert len(str(path)) > 107 > len(reachable)
        listener.bind(reachable)
        listener.listen()
        begun = ProcFs().stat(os.getpid()).start_time
        with pytest.raises(SqlFailed, match=r"did not answer in time|no server answers|closed"):
            sql.connect(target(socket=str(path), start_time=begun), timeout=0.1)
