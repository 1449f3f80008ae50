"""What is asked over SQL, with a connection that answers what a server would."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from innoscope.diagnose.asking import ask

#: A replica of 5.6 says some forty columns; the message of its error holds a literal.
SLAVE_STATUS = (
    ("Slave_IO_State", "Waiting for master to send event"),
    ("Slave_SQL_Running", "No"),
    ("Last_SQL_Errno", 1062),
    ("Last_SQL_Error", "Duplicate entry 'secret' for key 'PRIMARY'"),
    ("Seconds_Behind_Master", None),
    ("SQL_Delay", 0),
)

#: Connection 9, which is thread 4711.
THREADS = (
    ("TID", 4711), ("ID", 9), ("USER", "app"), ("HOST", "h:1"), ("DB", None), ("COMMAND", "Query"),
    ("STATE", None), ("TIME", 1), ("NULL", None), ("INFO", "SELECT 'secret'"),
)  # fmt: skip
PROCESSES = (
    ("ID", 9), ("USER", "app"), ("HOST", "h:1"), ("COMMAND", "Query"), ("STATE", None), ("TIME", 1),
    ("INFO", "SELECT 'secret'"),
)  # fmt: skip
#: By how a statement begins.
ANSWERS = {"SHOW SLAVE STATUS": SLAVE_STATUS, "SELECT TID, ID, USER": THREADS, "SELECT ID, USER": PROCESSES}


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

    def thread_id(self) -> int:
        return 7

    def execute(self, statement: str) -> None:
        self.asked.append(statement)
        self._columns = next((row for begin, row in ANSWERS.items() if statement.startswith(begin)), ())

    @property
    def description(self) -> list[tuple[str]]:
        return [(name,) for name, _ in self._columns]

    def fetchall(self) -> list[tuple[Any, ...]]:
        return [tuple(value for _, value in self._columns)] if self._columns else []

    def _force_close(self) -> None:
        self.closed = True


def test_of_what_a_replica_says_only_the_wanted_columns_are_kept() -> None:
    connection = Answering()
    target: Any = SimpleNamespace(flavour="mysql", version=(5, 6, 24))
    asked = ask(target, lambda: connection, 0)  # type: ignore[arg-type,return-value]
    assert asked.answers["replication"] == ({"running": "No", "error": "1062", "seconds": "", "delay": "0"},)
    assert "secret" not in repr(asked.answers)
    assert connection.asked[-1] == "SHOW SLAVE STATUS", "last, because it may wait"
    assert connection.closed


def test_statements_come_with_their_threads_where_the_server_tells_them() -> None:
    target: Any = SimpleNamespace(flavour="mariadb", version=(11, 4, 5))
    asked = ask(target, lambda: Answering(), 0)  # type: ignore[arg-type,return-value]
    (statement,) = asked.statements
    assert (statement.connection, statement.tid, statement.text) == (9, 4711, "SELECT ?")
