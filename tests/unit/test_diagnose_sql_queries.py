"""`diagnose` keeps only certain columns of the results of its SQL queries."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pymysql.constants import CR
from pymysql.err import OperationalError

from innoscope.diagnose.evidence import MissingSource
from innoscope.diagnose.sql_queries import SqlAnswers, default_queries, query_all
from innoscope.target.digests import digest
from unit.sql_connection import FakeConnection

GONE = MissingSource("gone", "the connection was lost")
UNSUPPORTED = MissingSource("unsupported", "not available on this server")
#: Some of the columns of SHOW SLAVE STATUS in MySQL 5.6. The error message contains a literal.
SLAVE_STATUS = {
    "Slave_IO_State": "Waiting for master to send event",
    "Slave_IO_Running": "Yes",
    "Slave_SQL_Running": "No",
    "Last_IO_Errno": 0,
    "Last_IO_Error": "",
    "Last_SQL_Errno": 1062,
    "Last_SQL_Error": "Could not execute Write_rows event on table shop.stock; Duplicate entry 'secret' for"
    " key 'PRIMARY', Error_code: 1062; handler error HA_ERR_FOUND_DUPP_KEY; the event's master log x",
    "Seconds_Behind_Master": None,
    "SQL_Delay": 0,
}


def test_replica_status_is_reduced_to_the_columns_needed() -> None:
    connection = FakeConnection({"SHOW SLAVE STATUS": (tuple(SLAVE_STATUS), [tuple(SLAVE_STATUS.values())])})
    target: Any = SimpleNamespace(flavour="mysql", version=(5, 6, 24))
    found = query_all(target, lambda: connection, 0)  # type: ignore[arg-type,return-value]
    assert found.answers["replication"] == (
        {
            "running": "No",
            "error": "1062",
            "applier_message": (
                "Could not execute Write_rows event on table shop.stock … HA_ERR_FOUND_DUPP_KEY"
            ),
            "receiving": "Yes",
            "receiver_error": "0",
            "receiver_message": "",
            "seconds": "",
            "delay": "0",
        },
    )
    assert "secret" not in repr(found.answers)
    assert connection.statements[-1] == "SHOW SLAVE STATUS", "last, because it may wait"
    assert connection.closed
    assert not found.lacks_blockers


def test_statements_that_are_not_truncated_have_the_digest_of_the_history() -> None:
    target: Any = SimpleNamespace(flavour="mysql", version=(8, 0, 31))
    query = default_queries()["processes"]
    asked = query.for_server(target.flavour, target.version)
    assert asked is not None
    short, long = "SELECT 1 FROM t WHERE a IN (1, 'secret')", "SELECT 'secret'".ljust(1_024, "x")
    rows = [
        (number, "app", "web1", "Query", "", 1, text) for number, text in enumerate((short, long, None), 1)
    ]
    found = query_all(target, lambda: FakeConnection({asked.sql: (query.columns, rows)}), 0)  # type: ignore[arg-type,return-value]
    expected = digest(short.encode(), flavour="mysql", version=(8, 0, 31))
    assert [one.digest for one in found.statements] == [expected.id, None, None]
    assert found.statements[0].named.endswith(f" (digest {expected.id[:12]})")
    assert "secret" not in repr(found.answers)


def test_a_later_attempt_adds_only_what_is_missing() -> None:
    first, later = SqlAnswers(), SqlAnswers()
    first.answers = {"transactions": ({"state": "first"},)}
    first.missing = dict.fromkeys(("sql.processes", "sql.variables", "sql.replication"), GONE)
    later.answers = {"transactions": ({"state": "later"},), "processes": ()}
    later.missing = {"sql.variables": UNSUPPORTED, "sql.replication": MissingSource("timeout", "no reply")}
    completed = first.completed_by(later)
    assert completed.answers == {"transactions": ({"state": "first"},), "processes": ()}
    assert completed.missing == {"sql.variables": UNSUPPORTED, "sql.replication": GONE}
    assert (first.lacks_blockers, completed.lacks_blockers) == (True, False)


def test_queries_after_a_timeout_are_missing_for_the_same_reason() -> None:
    class Hanging(FakeConnection):
        def execute(self, statement: str) -> None:
            super().execute(statement)
            if "INNODB_TRX" in statement:
                raise OperationalError(CR.CR_SERVER_LOST, "timed out") from TimeoutError()

    target: Any = SimpleNamespace(flavour="mysql", version=(8, 0, 31))
    connection = Hanging({})
    found = query_all(target, lambda: connection, 0)  # type: ignore[arg-type,return-value]
    unanswered = {f"sql.{name}" for name in default_queries()} - {f"sql.{name}" for name in found.answers}

    assert "INNODB_TRX" in connection.statements[-1]
    assert found.missing.keys() == unanswered
    reasons = {one.reason for one in found.missing.values()}
    assert reasons - {"unsupported"} == {"timeout"}
    assert found.lacks_blockers
