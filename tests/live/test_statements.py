"""Test that statements read from memory are those that the clients run, with and without symbols.

The expected statements come from the clients' own logs and from the server's process list.
"""

from __future__ import annotations

import contextlib
import json
import struct
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from pymysql.constants import CLIENT
from pymysql.constants.COMMAND import COM_QUERY, COM_STMT_EXECUTE, COM_STMT_PREPARE

from innoscope.memory.statements.attribution import Attribution
from innoscope.memory.statements.layout import CONFIRMED, DECODED, DESCRIBED, learn
from innoscope.sampling.engine import Engine
from innoscope.target.discover import find_one
from live.row_lock_waits import until_waiting
from safety.command import innoscope
from safety.privileges import without_bpf
from scale import count, few
from servers import ADDED, NAMES, TRIED, Server
from waiting import until
from workloads import Crowd, Idle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.sampling.model import Snapshot

ALL = [*NAMES, *ADDED, *TRIED]
SERVERS = few(ALL, "mysql-5.6.24", "mysql-8.0.31", "mariadb-10.11", reason="one server for each source")
FOREVER, SLEEPERS, WAITERS, BURNERS = 100_000, 20, 20, 2
CLIENTS, SNAPSHOTS = 8, count(quick=300, full=1_000)
WAITING = {"row_lock", "user_sleep"}
#: Prefixes of the short statements that the connections execute before the statements that do not end.
_PASSING = ("CALL", "SELECT 1", "PREPARE", "SET")
#: Snapshots that took at least this many seconds are not checked for missing statements: the clients'
#: statements may be shorter than that.
PROMPT_S = 0.01
PATIENCE_S = 200
SOURCES = {
    "mysql-5.5.9": DESCRIBED,
    "mysql-5.6.24": DESCRIBED,
    "mysql-5.7.22": CONFIRMED,
    "mysql-8.0.31": CONFIRMED,
    "mysql-9.7": CONFIRMED,
    "mariadb-10.5": DECODED,
    "mariadb-10.11": DECODED,
    "mariadb-11.4.5": DESCRIBED,
    "mariadb-11.8": DECODED,
}


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(request.param) as server:
        yield server


def _connected(server: Server, database: str) -> Any:
    return server.connect(database=database, client_flag=CLIENT.MULTI_STATEMENTS)


def _prepare(connection: Any, statement: str) -> None:
    """Execute a statement without parameters and with one column over the binary protocol; read no result."""
    connection._execute_command(COM_STMT_PREPARE, statement)
    number, columns = struct.unpack_from("<xIH", connection._read_packet()._data)
    for _ in range(columns + 1):
        connection._read_packet()
    connection._execute_command(COM_STMT_EXECUTE, struct.pack("<IBI", number, 0, 1))


@contextlib.contextmanager
def _scene(server: Server) -> Iterator[dict[int, str]]:
    """Run a different statement on each connection. Yield the statements by connection."""
    with Idle(server, 1) as idle, contextlib.ExitStack() as stack:
        idle.sql(f"CREATE TABLE {idle.database}.t1 (a INT PRIMARY KEY, b INT) ENGINE=InnoDB")
        idle.sql(f"INSERT INTO {idle.database}.t1 VALUES (1, 0)")
        inner = f"SELECT SLEEP({FOREVER}), 'in a procedure'"
        idle.sql(f"CREATE PROCEDURE {idle.database}.p() BEGIN SELECT 1; {inner}; END")
        hold = ("BEGIN", "UPDATE t1 SET b = b + 1")
        stack.enter_context(Crowd(server, 1, idle.database, hold))
        expected: dict[int, str] = {}
        for setup, statements in (
            ((), [f"SELECT SLEEP({FOREVER}), 'sleeper {one} ü'" for one in range(SLEEPERS)]),
            (
                (f"SET SESSION innodb_lock_wait_timeout = {FOREVER}",),
                [f"UPDATE t1 SET b = {one} WHERE a = 1" for one in range(WAITERS)],
            ),
            ((), [f"SELECT BENCHMARK(1000000000000, CRC32('{one}'))" for one in range(BURNERS)]),
            (("PREPARE s FROM 'SELECT SLEEP(100000), ''by name'''",), ["EXECUTE s"]),
            ((), [f"SELECT SLEEP({FOREVER}), '{'long ' * 2_000}'"]),
            ((), ["CALL p()"]),
        ):
            crowd = stack.enter_context(Crowd(server, len(statements), idle.database, setup))
            crowd.send(*statements)
            expected |= dict(zip(crowd.ids, statements, strict=True))
        for send, statement in (
            (_prepare, f"SELECT SLEEP({FOREVER}), 'binary'"),
            (_query, f"SELECT 1; SELECT SLEEP({FOREVER}), 'second'; SELECT 3"),
        ):
            connection = _connected(server, idle.database)
            stack.callback(connection._force_close)
            send(connection, statement)
            expected[int(connection.thread_id())] = statement
        until(lambda: expected.keys() == _in_place(server), lambda: _list(server))
        asleep = len(expected) - WAITERS - BURNERS
        until(lambda: len(idle.listed("STATE = 'User sleep'")) == asleep, lambda: _list(server))
        until_waiting(idle, WAITERS)
        yield expected


def _query(connection: Any, statement: str) -> None:
    connection._execute_command(COM_QUERY, statement)


def _in_place(server: Server) -> set[int]:
    """Return the connections that are executing a statement that does not end."""
    return {
        connection
        for connection, (_, schema, command, statement) in _list(server).items()
        if schema and command in {"Query", "Execute"} and not (statement or "").startswith(_PASSING)
    }


def _list(server: Server) -> dict[int, tuple[Any, ...]]:
    """Return ``{connection: (user, schema, command, statement)}`` from the process list."""
    rows = server.sql("SHOW FULL PROCESSLIST")
    return {row[0]: (row[1], row[3], row[4], row[7]) for row in rows}


def _document(server: Server, *options: str, under: Any = ()) -> dict[str, Any]:
    command = ("stacks", "--pid", server.pid, "--statements", "--statement-length", 4096, "--json", *options)
    done = innoscope(*command, under=under)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_statements_are_those_of_the_process_list(server: Server) -> None:
    with _scene(server) as sent:
        listed = _list(server)
        documents = [_document(server) for _ in range(count(quick=3, full=20))]
        again = _list(server)
    trusts: Counter[tuple[str, str]] = Counter()
    for document in documents:
        assert f"statements from memory, by {SOURCES[server.name]}" in document["notes"]
        queries = {one["query"]["connection_id"]: one for one in document["threads"] if one["query"]}
        for connection in sent.keys() - queries.keys():
            trusts["missing", sent[connection][:20]] += 1
        for connection, thread in queries.items():
            query = thread["query"]
            trusts[query["trust"], thread["wait"]] += 1
            if connection not in sent:
                continue
            user, schema, command, statement = listed[connection]
            assert statement == again[connection][3], "the scene changed"
            assert (query["user"], query["db"], query["command"]) == (user, schema, command)
            assert query["text_bytes"] == len(statement.encode())
            assert statement.encode().startswith(query["text"].encode())
            assert len(query["text"].encode()) == min(4096, query["text_bytes"])
            if thread["wait"] in WAITING:
                assert query["trust"] == "exact"
    print(server.name, dict(trusts))
    assert not any(trust == "missing" for trust, _ in trusts), trusts


def test_text_output_and_cut(server: Server) -> None:
    with _scene(server):
        done = innoscope(
            "stacks", "--pid", server.pid, "--statements", "--by", "thread", "--wait", "row_lock"
        )
        folded = innoscope("stacks", "--pid", server.pid, "--statements", "--statement-length", 20)
    assert done.stdout.count(" exact\n  UPDATE t1 SET b = ") == WAITERS, done.stdout
    assert "× UPDATE `t1` SET `b` = ? WHERE `a` = ?" in folded.stdout, folded.stdout


def test_statements_without_bpf(server: Server) -> None:
    with _scene(server) as sent:
        document = _document(server, under=without_bpf())
    found = [one["query"] for one in document["threads"] if one["query"] and one["wait"] in WAITING]
    assert document["method"] == "procfs"
    assert len(found) >= SLEEPERS + WAITERS
    assert {query["trust"] for query in found} == {"exact"}
    assert {query["connection_id"] for query in found} <= set(sent)


#: For each statement: when it was sent, when its result arrived, and when the next statement's result
#: arrived.
Log = dict[str, tuple[float, float, float]]


class Client(threading.Thread):
    """A client that runs different short statements until it is stopped, and logs when each one ran."""

    def __init__(self, server: Server, database: str, number: int, ended: threading.Event) -> None:
        super().__init__(daemon=True)
        self._connection = _connected(server, database)
        self.connection = int(self._connection.thread_id())
        self._number = number
        self._ended = ended
        self.log: Log = {}

    def run(self) -> None:
        with contextlib.closing(self._connection) as connection, connection.cursor() as cursor:
            for number in range(1_000_000):
                if self._ended.is_set():
                    return
                mark = f"{self._number}.{number:07}"
                statement = (
                    f"SELECT SLEEP(0.02), '{mark}'",
                    f"UPDATE t1 SET b = b + 1 + SLEEP(0.02) WHERE a = 1 AND '{mark}' <> 'x'",
                    f"SELECT BENCHMARK(20000, CRC32('{mark}'))",
                    f"CALL p('{mark}')",
                )[number % 4]
                started = time.time()
                cursor.execute(statement)
                while cursor.nextset():
                    pass
                self.log[statement] = (started, time.time(), float("inf"))


def test_no_statement_is_wrong_while_they_change(server: Server) -> None:
    target = find_one(pid=server.pid)
    assert learn(target).source == SOURCES[server.name]
    ended = threading.Event()
    with Idle(server, 1) as idle:
        idle.sql(f"CREATE TABLE {idle.database}.t1 (a INT PRIMARY KEY, b INT) ENGINE=InnoDB")
        idle.sql(f"INSERT INTO {idle.database}.t1 VALUES (1, 0)")
        idle.sql(f"CREATE PROCEDURE {idle.database}.p(mark VARCHAR(20)) SELECT SLEEP(0.02), mark")
        clients = [Client(server, idle.database, number, ended) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        taken: list[tuple[Snapshot, float, float]] = []
        try:
            source = Attribution(target, Engine(target), 4096)
            prompt, deadline = 0, time.monotonic() + PATIENCE_S
            while prompt < SNAPSHOTS:
                assert time.monotonic() < deadline, f"only {prompt} of {len(taken)} snapshots were prompt"
                started = time.time()
                snapshot = source.take_snapshot()
                taken.append((snapshot, started, time.time()))
                prompt += time.time() - started < PROMPT_S
                time.sleep(0.01)
        finally:
            ended.set()
            for client in clients:
                client.join()
    logs = {client.connection: _complete(client.log) for client in clients}
    seen: Counter[str] = Counter()
    waiting: Counter[bool] = Counter()
    wrong = []
    for snapshot, started, until_s in taken:
        for thread in snapshot.threads:
            # On a busy host, a snapshot can take longer than these waits.
            if thread.wait in WAITING and until_s - started < PROMPT_S:
                waiting[thread.query is not None] += 1
            if thread.query is None or thread.query.connection_id not in logs:
                seen[f"without a statement: {thread.wait}"] += thread.wait in WAITING
                continue
            query, log = thread.query, logs[thread.query.connection_id]
            seen[f"{query.trust}: {thread.wait}"] += 1
            ran = _ran(query.text, log, started, until_s, blocked=thread.wait in WAITING)
            if not ran or not _fits(thread.wait, query.text):
                wrong.append((query.trust, thread.wait, query.text))
    print(server.name, dict(seen), dict(waiting))
    assert not wrong
    assert waiting[True] >= SNAPSHOTS
    assert waiting[False] <= 0.01 * waiting[True]


def _ran(text: str | None, log: Log, start: float, end: float, *, blocked: bool) -> bool:
    """Return whether the client executed this statement, or a procedure that contains it, between two times.

    Return True if the text is unknown.

    A statement may still be executing after its result was sent, at most until the next one's result arrives.
    """
    if text is None:
        return True
    inner = text.startswith("SELECT SLEEP(0.02), ") and text not in log
    times = [log[one] for one in log if one.startswith("CALL")] if inner else [log.get(text)]
    return any(one and one[0] <= end and start <= (one[1] if blocked else one[2]) for one in times)


def _complete(log: Log) -> Log:
    """Add to each entry the time at which the next statement's result arrived."""
    ends = [end for _, end, _ in log.values()]
    following = [*ends[1:], float("inf")]
    return {
        text: (start, end, after)
        for (text, (start, end, _)), after in zip(log.items(), following, strict=True)
    }


def _fits(wait: str, text: str | None) -> bool:
    """Return whether a thread with this wait class can be executing the statement."""
    if wait == "row_lock":
        return text is not None and text.startswith("UPDATE")
    return wait != "user_sleep" or text is None or not text.startswith("SELECT BENCHMARK")
