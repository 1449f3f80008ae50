"""Test that digest texts equal those that servers compute for the same statements."""

from __future__ import annotations

import contextlib
import re
import sys
from typing import TYPE_CHECKING, Any, Final

import pymysql
import pytest

from innoscope.common.versions import leading_numbers
from innoscope.target.digests import digest
from live.statement_mix import SINCE_8, statements
from servers import Server

if TYPE_CHECKING:
    from collections.abc import Iterator

#: MySQL's error numbers for syntax errors: the server's digest then ends at the error.
_SYNTAX_ERRORS: Final = frozenset({1064, 1149})
_OPTIONS: Final = (
    "--performance-schema=ON",
    "--performance-schema-instrument=statement/%=ON",
    "--performance-schema-consumer-events-statements-current=ON",
    "--performance-schema-consumer-events-statements-history=ON",
    "--performance-schema-consumer-statements-digest=ON",
)
#: Matches the statements of the mix whose texts differ, by server (docs/digests.md).
DOCUMENTED: Final = {
    "mysql-5.7.22": r" IN \(|/\*\+ |\|\||GENERATED",
    "mariadb-10.11": r" IN \(|[xX]'1|``",
}
_LAST: Final = """
    SELECT DIGEST_TEXT FROM performance_schema.events_statements_history
    WHERE THREAD_ID = (SELECT THREAD_ID FROM performance_schema.threads WHERE PROCESSLIST_ID = %s)
    AND EVENT_NAME LIKE 'statement/sql/%%' ORDER BY EVENT_ID DESC LIMIT 1
"""


def pairs(server: Server, texts: list[str]) -> Iterator[tuple[str, str]]:
    """Run the statements; yield those without syntax errors, each with the server's text."""
    server.sql("CREATE DATABASE IF NOT EXISTS mix")
    with contextlib.closing(server.connect()) as watching, watching.cursor() as watch:
        runs: Any = None
        for statement in texts:
            runs = (
                runs if runs is not None and runs.open else server.connect(charset="utf8mb4", database="mix")
            )
            with runs.cursor() as cursor:
                try:
                    cursor.execute(statement)
                except pymysql.MySQLError as error:
                    if error.args[0] in _SYNTAX_ERRORS:
                        continue
            runs.ping(reconnect=False)  # its reply comes after the statement is in the history
            watch.execute(_LAST, (runs.thread_id(),))
            found = watch.fetchone()
            if found is not None and found[0] is not None:
                yield statement, found[0].rstrip()  # before 8.0, a space follows each token
        runs.close()


def differences(server: Server, texts: list[str]) -> tuple[int, list[tuple[str, str, str]]]:
    """Return the number of compared statements, and those that differ: statement, server's text, ours."""
    version = leading_numbers(server.version)
    compared, differing = 0, []
    for statement, expected in pairs(server, texts):
        ours = digest(
            statement.encode(), flavour=server.spec.flavour, version=version, certain=True, max_chars=10_000
        ).text
        compared += 1
        if ours != expected:
            differing.append((statement, expected, ours))
    print(f"{server.name}: {compared} statements, {len(differing)} differ", file=sys.stderr)
    for difference in differing:
        print(*difference, sep="\n    ", file=sys.stderr)
    return compared, differing


@pytest.mark.parametrize("name", ["mysql-8.0.31", "mysql-9.7"])
def test_texts_are_the_servers(name: str) -> None:
    with Server(name, options=_OPTIONS) as server:
        compared, differing = differences(server, [*statements(), *SINCE_8])
        version = leading_numbers(server.version)
        words = server.sql(
            "SELECT WORD, STATEMENT_DIGEST_TEXT(CONCAT('SELECT a AS ', WORD)) "
            "FROM information_schema.KEYWORDS WHERE RESERVED = 0"
        )
    assert compared > 400
    assert differing == []
    assert len(words) > 400
    for word, text in words:
        assert digest(f"SELECT a AS {word}".encode(), version=version).text == text


@pytest.mark.parametrize("name", DOCUMENTED)
def test_texts_of_other_servers_differ_only_as_documented(name: str) -> None:
    with Server(name, options=_OPTIONS) as server:
        compared, differing = differences(server, statements())
    assert compared > 400
    assert len(differing) < 0.15 * compared
    assert [one for one in differing if not re.search(DOCUMENTED[name], one[0])] == []
