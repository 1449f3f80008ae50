"""What is asked over SQL, with a connection that answers what a server would."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from innoscope.diagnose.sql_queries import query_all

#: A replica of 5.6 says some forty columns; the message of its error holds a literal.
SLAVE_STATUS = (
    ("Slave_IO_State", "Waiting for master to send event"),
    ("Slave_SQL_Running", "No"),
    ("Last_SQL_Errno", 1062),
    ("Last_SQL_Error", "Duplicate entry 'secret' for key 'PRIMARY'"),
    ("Seconds_Behind_Master", None),
    ("SQL_Delay", 0),
)


class Answering:
    """A connection and its cursor."""

    user = b"app"
    closed = False

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._columns: tuple[tuple[str, Any], ...] = ()

    def cursor(self) -> Answering:
        return self

    def __enter__(self) -> Answering:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def execute(self, statement: str) -> None:
        self.asked.append(statement)
        self._columns = SLAVE_STATUS if statement == "SHOW SLAVE STATUS" else ()

    @property
    def description(self) -> list[tuple[str]]:
        return [(name,) for name, _ in self._columns]

    def fetchall(self) -> list[tuple[Any, ...]]:
        return [tuple(value for _, value in self._columns)] if self._columns else []

    def abandon(self) -> None:
        self.closed = True


def test_of_what_a_replica_says_only_the_wanted_columns_are_kept() -> None:
    connection = Answering()
    target: Any = SimpleNamespace(flavour="mysql", version=(5, 6, 24))
    asked = query_all(target, lambda: connection, 0)  # type: ignore[arg-type,return-value]
    assert asked.answers["replication"] == ({"running": "No", "error": "1062", "seconds": "", "delay": "0"},)
    assert "secret" not in repr(asked.answers)
    assert connection.asked[-1] == "SHOW SLAVE STATUS", "last, because it may wait"
    assert connection.closed
