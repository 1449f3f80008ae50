"""Test that `history --by cause` charges a convoy's time to the statement of the connection at its head."""

from __future__ import annotations

import contextlib
import json
import threading
from typing import TYPE_CHECKING, Any, Final

import pytest

from innoscope.target.digests import digest
from innoscope.target.discover import find_one
from safety.agenting import Running
from safety.command import innoscope
from safety.sensing import Sensing
from scale import few
from servers import Server
from waiting import until
from workloads import Idle
from workloads.crowd import Crowd

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from safety.agenting import Scrape

SERVERS = few(
    ["mysql-5.6.24", "mysql-8.0.31", "mariadb-11.4.5"],
    "mysql-5.6.24",
    reason="test_blocking_connections tests the others",
)
WAITERS, SHARE = 20, 0.95
HOLD_S: Final = 8
PATIENCE_S = 60
#: INNODB_TRX is refreshed only if it has not been read for 0.1 s.
_REFRESHED_S: Final = 0.15
#: The number of transactions that are waiting for a lock.
_LOCKED: Final = "SELECT COUNT(*) FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'"
#: The head of the first convoy executes for HOLD_S. The head of the second is idle after 5 s of execution.
EXECUTES = f"UPDATE t1 SET b = b + 1 WHERE a = 1 AND SLEEP({HOLD_S}) = 0"
IDLES = "UPDATE t1 SET c = SLEEP(5) WHERE a = 2"


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(request.param) as server:
        yield server


@contextlib.contextmanager
def _executing(server: Server, database: str) -> Iterator[None]:
    """Run EXECUTES in a thread."""
    with contextlib.closing(server.connect(database=database)) as connection:
        thread = threading.Thread(target=connection.query, args=(EXECUTES,))
        thread.start()
        try:
            yield
        finally:
            thread.join()


def _until_statements_are_known(server: Server, agent: Running) -> None:
    """Wait until the sensor has read a statement. The first one reveals where thread ids are stored."""
    with Crowd(server, 1, "information_schema") as client:
        client.send(f"SELECT SLEEP({PATIENCE_S})")
        agent.until(lambda scrape: scrape.value("statement_threads", trust="exact") == 1, PATIENCE_S)


def _convoys(server: Server, agent: Running) -> float:
    """Cause two convoys. Return the seconds for which threads have waited in the first one."""
    setup = ("SET SESSION innodb_lock_wait_timeout = 1000",)
    with Idle(server, 1) as idle:
        idle.sql(f"CREATE TABLE {idle.database}.t1 (a INT PRIMARY KEY, b INT, c INT) ENGINE=InnoDB")
        idle.sql(f"INSERT INTO {idle.database}.t1 VALUES (1, 0, 0), (2, 0, 0), (3, 0, 0)")
        with Crowd(server, WAITERS, idle.database, setup) as waiters, _executing(server, idle.database):
            until(lambda: idle.listed("STATE = 'User sleep'"))  # the statement has locked the row
            waiters.send("UPDATE t1 SET b = 2 WHERE a = 1")
        # the threads have left the wait class, so the metric has its final value
        ended = agent.until(
            lambda scrape: scrape.value("threads", wait="row_lock", kind="client") == 0, PATIENCE_S
        )
        middle_setup = (*setup, "BEGIN", "UPDATE t1 SET b = 3 WHERE a = 3")
        with (
            Crowd(server, 1, idle.database, ("BEGIN", IDLES)),
            Crowd(server, 1, idle.database, middle_setup) as middle,
            Crowd(server, WAITERS, idle.database, setup) as waiters,
        ):
            middle.send("UPDATE t1 SET b = 4 WHERE a = 2")
            until(lambda: idle.sql(_LOCKED) == [(1,)], every_s=_REFRESHED_S)
            waiters.send("UPDATE t1 SET b = 5 WHERE a = 3")
            begun = _waited(agent.scrape())
            agent.until(lambda scrape: _waited(scrape) >= begun + WAITERS * HOLD_S, PATIENCE_S)
    return _waited(ended)


def _waited(scrape: Scrape) -> float:
    """Return the seconds for which threads have waited for row locks."""
    return scrape.value("thread_seconds_total", wait="row_lock") or 0.0


def _groups(history: Path, by: str) -> list[dict[str, Any]]:
    options = ("--where", "wait=row_lock", "--by", by, "--dir", history, "--json")
    done = innoscope("history", "10m", *options)
    assert done.returncode == 0, done.stderr
    groups: list[dict[str, Any]] = json.loads(done.stdout)["groups"]
    return groups


def test_row_lock_time_is_charged_to_the_heads_of_the_convoys(server: Server) -> None:
    target = find_one(pid=server.pid)
    with Sensing(only=[server]) as sensing, Running(server, sensor=sensing.path) as agent:
        agent.until(lambda scrape: scrape.value("statements_up") == 1, PATIENCE_S)
        _until_statements_are_known(server, agent)
        first = _convoys(server, agent)
        agent.until_recorded()
        agent.terminate()
        causes = _groups(agent.history, "cause,cause_state")
        objects = _groups(agent.history, "object")
    total = sum(group["seconds"] for group in causes)
    assert total > 1.5 * WAITERS * HOLD_S
    found = {(group["cause"], group["cause_state"]): group["seconds"] for group in causes}
    heads = {
        "executing": digest(EXECUTES.encode(), flavour=target.flavour, version=target.version).id,
        "idle": digest(IDLES.encode(), flavour=target.flavour, version=target.version).id,
    }
    charged = {state: found.get((head, state), 0.0) for state, head in heads.items()}
    shown = {
        (group["cause_text"] or group["cause"], group["cause_state"]): group["seconds"] for group in causes
    }
    share = 100 * sum(charged.values()) / total
    print(f"\n{server.name}: {total:.1f} s in row_lock, {share:.1f} % charged to the heads")
    for (cause, state), seconds in shown.items():
        print(f"  {seconds:7.1f} s  {state:<9}  {cause}")
    for group in objects:
        print(f"  {group['seconds']:7.1f} s  {group['object']}")
    assert sum(charged.values()) >= SHARE * total, shown
    assert charged["executing"] > 0.8 * first, shown
    assert charged["idle"] > 0.8 * (total - first), shown
    named = sum(group["seconds"] for group in objects if str(group["object"]).endswith(".t1.PRIMARY"))
    assert named >= SHARE * total, objects
