"""The account in packaging/account.sql is sufficient for the agent, and can do nothing else."""

from __future__ import annotations

import re
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pymysql
import pytest

from innoscope.metrics.collectors import sql_catalog, state_catalog
from innoscope.metrics.collectors.sql import SqlCollector
from innoscope.metrics.collectors.state import StateCollector
from innoscope.target import sql
from innoscope.target.discover import find_one
from scale import few
from servers import ADDED, NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from innoscope.target.model import Target
    from servers import Server

ACCOUNT = Path(__file__).parents[2] / "packaging" / "account.sql"
#: Global privileges: the first alternative on MySQL, the second on MariaDB 10.5.9 and newer.
GLOBAL = r"GRANT PROCESS, (REPLICATION CLIENT|SLAVE MONITOR)"
#: The servers in NAMES and ADDED; `make test` uses only those in NAMES, which other tests start anyway.
SERVERS = few(
    (*NAMES, *ADDED), *NAMES, reason="tests/live/test_blockers.py uses the account on 5.7.22 and 8.0.31"
)
#: Maximum seconds for a reply.
_PATIENCE_S = 60.0
PASSWORD = "o5/Kx+2'=b"  # noqa: S105


def statements(password: str) -> list[str]:
    """Return the statements of account.sql, with ``password`` filled in."""
    text = ACCOUNT.read_text().replace("change me", password.replace("'", "''"))
    lines = (line for line in text.splitlines() if not line.startswith("--"))
    return [statement.strip() for statement in "\n".join(lines).split(";") if statement.strip()]


@pytest.fixture(params=SERVERS)
def account(request: pytest.FixtureRequest, server: Callable[[str], Server]) -> Iterator[Server]:
    """Yield a server that has the account; parametrized by server."""
    one = server(request.param)
    with closing(one.connect()) as connection, connection.cursor() as cursor:
        for statement in statements(PASSWORD):
            cursor.execute(statement)
        yield one
        cursor.execute("DROP USER innoscope@localhost")


@pytest.fixture
def option_file(tmp_path: Path) -> str:
    path = tmp_path / "my.cnf"
    path.write_text(f'[client]\nuser = innoscope\npassword = "{PASSWORD}"\n')
    return str(path)


def collected(target: Target, file: str | None, user: str | None) -> tuple[set[tuple[str, ...]], str | None]:
    """Return the series that an account collects over SQL, and an error if it lacks privileges, else None.

    A new server is not a replica, but the account must be allowed to query the replica status.
    """
    connect = partial(sql.connect, target, file, user, _PATIENCE_S)
    collector = SqlCollector(connect, sql_catalog.default(), target.flavour, target.version, _PATIENCE_S)
    state = StateCollector(
        connect, state_catalog.default(), target.flavour, target.version, timeout=_PATIENCE_S
    )
    with closing(collector), closing(state):
        found = {(one.metric, *one.labels) for one in (*collector.collect(), *state.collect())}
        return found, collector.shortfall or state.shortfall


def test_account_is_sufficient_for_the_agent(account: Server, option_file: str) -> None:
    target = find_one(account.pid)
    with_account, denied = collected(target, option_file, None)
    as_root, _ = collected(target, None, "root")

    assert denied is None
    assert with_account == as_root
    assert len(with_account) > 20


def test_account_cannot_read_data_or_change_anything(account: Server) -> None:
    with (
        closing(account.connect(user="innoscope", password=PASSWORD)) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("SHOW GRANTS")
        grants = [row[0].replace("`", "").replace("'", "") for row in cursor.fetchall()]
        [everywhere, *tables] = grants
        assert re.match(GLOBAL + r" ON \*\.\* TO innoscope@localhost", everywhere), everywhere
        for grant in tables:
            assert re.match(r"GRANT SELECT ON performance_schema\.\w+ TO innoscope@localhost$", grant)
        for statement in (
            "SELECT * FROM mysql.user",
            "SET GLOBAL read_only = ON",
            "CREATE DATABASE ours",
            "KILL 1",
            "SHOW BINLOG EVENTS",
        ):
            with pytest.raises(
                pymysql.MySQLError, match=r"denied|need|not owner|owner of thread|Unknown thread"
            ):
                cursor.execute(statement)
