"""Test the ages and isolation levels of transactions that `diagnose` reads from real servers."""

from __future__ import annotations

from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING

import pytest

from innoscope.diagnose.sql_queries import query_all
from innoscope.target import sql
from innoscope.target.discover import find_one
from scale import few
from servers import ADDED, NAMES, Server
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Mapping

LEVELS = ("READ COMMITTED", "REPEATABLE READ")


@pytest.mark.parametrize(
    "name", few((*NAMES, *ADDED), "mysql-5.6.24", "mariadb-10.11", reason="the statements of both flavours")
)
def test_transactions_have_ages_whatever_the_time_zone(name: str) -> None:
    """Check the ages although INNODB_TRX uses the system's time zone, and NOW() the session's."""
    with Server(name, options=("--default-time-zone=+05:00",)) as server, ExitStack() as stack:
        server.sql("CREATE DATABASE old")
        server.sql("CREATE TABLE old.t (a INT PRIMARY KEY) ENGINE=InnoDB")
        levels = {}
        for number, level in enumerate(LEVELS):
            connection = stack.enter_context(closing(server.connect()))
            levels[str(connection.thread_id())] = level  # type: ignore[no-untyped-call]
            with connection.cursor() as cursor:
                cursor.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
                cursor.execute("BEGIN")
                cursor.execute(f"INSERT INTO old.t VALUES ({number})")

        def aged() -> Mapping[str, Mapping[str, str]]:
            answers = query_all(target, partial(sql.connect, target, user="root"), 0)
            transactions = answers.answers.get("transactions", ())  # none if the query timed out
            found = {row["connection"]: row for row in transactions}
            old = [row for row in found.values() if row["connection"] in levels and int(row["seconds"]) >= 1]
            return found if len(old) == len(levels) else {}

        target = find_one(server.pid)
        rows = until(aged, within_s=20)
        assert {one: rows[one]["isolation"] for one in levels} == levels
        assert all(int(rows[one]["seconds"]) < 60 for one in levels)
        assert not any(rows[one]["text"] for one in levels)
