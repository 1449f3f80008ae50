"""Time is charged to the statement at the root of each chain of blocked connections."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import pytest

from innoscope.cli import history_sql
from innoscope.cli import main as cli_main
from innoscope.sampling.sessions.model import Batch, Sampled
from innoscope.sampling.sessions.report import Answer, ColumnCondition, Question, SessionHistory
from innoscope.sampling.sessions.store import HistoryLimits, HistoryStore
from innoscope.target.digests import digest_id
from unit.session_samples import START, Clock, shape

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

HOUR = 3_600
FIRST, SECOND, THIRD = "UPDATE `a`", "UPDATE `b`", "UPDATE `c`"
CYCLE, UNKNOWN, IDLE = "(cycle)", "(unknown blocker)", "(idle transaction)"
UNREAD = "(unknown statement)"


class One(NamedTuple):
    """A busy connection: its statement, wait class and blocker."""

    connection: int | None
    statement: str | None
    wait: str = "row_lock"
    blocker: int | None = None
    kind: str = "connection"


def write(folder: Path, snapshots: Mapping[int, Iterable[One]], server: str = "orders") -> None:
    """Write snapshots, whose keys are the seconds from START to the time of each snapshot."""
    clock = Clock()
    store = HistoryStore(folder, HistoryLimits(part_rows=100_000), clock, clock)
    store.prepare()
    for second, busy in snapshots.items():
        clock.now = START + second
        store.add(server, _batch(second, list(busy)))
        store.tick()
    store.close()


def _batch(second: int, busy: list[One]) -> Batch:
    shapes = [
        shape(one.wait)._replace(digest=one.statement and digest_id(one.statement), kind=one.kind)
        for one in busy
    ]
    count = len(busy)
    blockers = [one.blocker for one in busy]
    sampled = Sampled(
        int((START + second) * 1e6),
        1.0,
        list(range(1, count + 1)),
        list(range(count)),
        [one.connection for one in busy],
        blockers,
    )
    return Batch(shapes, [sampled], {digest_id(one): one for one in (FIRST, SECOND, THIRD)})


def ask(folder: Path, *by: str, begin: int = 0, where: tuple[ColumnCondition, ...] = ()) -> Answer:
    history = SessionHistory(folder)
    question = Question(START + begin, START + 10 * HOUR, by, where)
    answer = history.ask(question)
    history.explain(answer, question, answer.groups)
    return answer


def causes(folder: Path, begin: int = 0) -> dict[tuple[object, object, object], float]:
    """Return the seconds by the cause's text, connection and state."""
    answer = ask(folder, "cause", "cause_connection", "cause_state", begin=begin)
    found: dict[tuple[object, object, object], float] = {}
    for group in answer.groups:
        cause, connection, state = group.values
        found[answer.texts.get(str(cause), cause), connection, state] = group.seconds
    return found


def test_chain_is_charged_to_the_root_whatever_the_order_of_its_rows(tmp_path: Path) -> None:
    chain = [One(1, FIRST, "on_cpu"), One(2, SECOND, blocker=1), One(3, THIRD, blocker=2)]
    write(tmp_path, {0: chain, 1: reversed(chain)})
    assert causes(tmp_path) == {(FIRST, 1, "itself"): 2.0, (FIRST, 1, "executing"): 4.0}


def test_idle_root_is_charged_by_its_last_statement(tmp_path: Path) -> None:
    waiting = [One(2, SECOND, blocker=1)]
    write(tmp_path, {0: [One(1, THIRD, "on_cpu")], 1: [One(1, FIRST, "on_cpu")], 2: waiting, 3: waiting})
    assert causes(tmp_path, begin=2) == {(FIRST, 1, "idle"): 2.0}


def test_last_statement_is_remembered_for_an_hour_or_as_long_as_others_wait(tmp_path: Path) -> None:
    waiting = [One(2, SECOND, blocker=1)]
    write(tmp_path, {0: [One(1, FIRST, "on_cpu")], HOUR: waiting, 2 * HOUR: waiting, 3 * HOUR + 1: waiting})
    assert causes(tmp_path, begin=1) == {(FIRST, 1, "idle"): 2.0, (IDLE, 1, "idle"): 1.0}


def test_last_statement_of_another_server_is_not_used(tmp_path: Path) -> None:
    clock = Clock()
    store = HistoryStore(tmp_path, HistoryLimits(), clock, clock)
    store.prepare()
    store.add("stock", _batch(0, [One(1, FIRST, "on_cpu")]))
    store.add("orders", _batch(1, [One(2, SECOND, blocker=1)]))
    store.close()
    answer = ask(tmp_path, "cause", begin=1)
    assert [group.values[-1] for group in answer.groups] == [IDLE]


def test_cycles_and_unknown_blockers_are_named(tmp_path: Path) -> None:
    busy = [
        One(10, FIRST, blocker=20),
        One(20, SECOND, blocker=10),
        One(30, THIRD, blocker=20),
        One(40, THIRD, blocker=40),
        One(50, FIRST),
        One(60, SECOND, blocker=50),
        One(70, THIRD, "metadata_lock"),
        One(None, None, "fsync_redo"),
    ]
    write(tmp_path, {0: busy})
    assert causes(tmp_path) == {
        (CYCLE, None, "cycle"): 4.0,
        (UNKNOWN, None, "unknown"): 3.0,
        (None, None, "itself"): 1.0,
    }


def test_busy_root_without_a_statement_is_not_idle(tmp_path: Path) -> None:
    """Check that the root's previous statement is not named as the cause.

    If the root itself is waiting, the cause and its connection are unknown.
    """
    write(tmp_path, {
        0: [One(1, FIRST, "on_cpu"), One(4, FIRST, "on_cpu")],
        1: [One(1, None, "on_cpu"), One(2, SECOND, blocker=1)],
        2: [One(4, None), One(5, SECOND, blocker=4)],
    })  # fmt: skip
    assert causes(tmp_path, begin=1) == {
        (None, 1, "itself"): 1.0,
        (UNREAD, 1, "executing"): 1.0,
        (UNKNOWN, None, "unknown"): 2.0,
    }


def test_root_may_be_a_thread_that_is_not_counted(tmp_path: Path) -> None:
    """Let an applier, which is not a client, block a client. Conditions apply only to the client's sample."""
    write(tmp_path, {0: [One(9, FIRST, "on_cpu", kind="applier"), One(2, SECOND, blocker=9)]})
    assert causes(tmp_path) == {(FIRST, 9, "executing"): 1.0}
    answer = ask(tmp_path, "digest", where=(ColumnCondition("cause", (digest_id(FIRST)[:6],)),))
    assert [(group.values, group.seconds) for group in answer.groups] == [((digest_id(SECOND),), 1.0)]


def test_all_time_has_a_cause_and_the_sum_is_database_time(tmp_path: Path) -> None:
    snapshots = {
        second: [One(number, FIRST, "row_lock", number // 2 or None) for number in range(1, 300)]
        for second in range(100)
    }
    write(tmp_path, snapshots)
    assert ask(tmp_path, "cause").seconds == ask(tmp_path, "wait").seconds == 29_900.0


@pytest.mark.parametrize("long", [False, True])
def test_long_chains_and_long_cycles_end(tmp_path: Path, long: bool) -> None:
    end = [One(1, FIRST, "on_cpu")] if long else [One(1, FIRST, blocker=20_000)]
    chain = [*end, *(One(number, SECOND, blocker=number - 1) for number in range(2, 20_001))]
    write(tmp_path, {0: chain})
    expected = {(FIRST, 1, "itself"): 1.0, (FIRST, 1, "executing"): 19_999.0}
    assert causes(tmp_path) == (expected if long else {(CYCLE, None, "cycle"): 20_000.0})


@pytest.mark.usefixtures("history_memory")
def test_table_shows_the_causing_statement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    write(tmp_path, {0: [One(1, FIRST, "on_cpu"), One(2, SECOND, blocker=1), One(3, THIRD)]})
    span = ("--from", "2023-11-14T22:00", "--to", "2023-11-14T23:00", "--dir", str(tmp_path))
    assert cli_main.main(["history", *span, "--by", "cause"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["SECONDS", "SHARE", "SESSIONS", "CAUSE", "CAUSING", "STATEMENT"]
    assert lines[3].endswith(f"{digest_id(FIRST)[:12]}       {FIRST}")
    assert UNKNOWN in lines[4]


def test_view_blockers_has_the_same_roots(tmp_path: Path) -> None:
    snapshots = {
        0: [One(1, FIRST, "on_cpu")],
        1: [One(2, SECOND, blocker=1), One(3, THIRD, blocker=2)],
        2: [One(1, THIRD, "on_cpu"), One(2, SECOND, blocker=1)],
        3: [One(2, SECOND, blocker=3), One(3, THIRD, blocker=2), One(4, FIRST, blocker=99)],
        4: [One(1, None, "on_cpu"), One(2, SECOND, blocker=1)],
    }
    write(tmp_path, snapshots)
    query = (
        "SELECT connection, root_connection, text, root_executes"
        " FROM blockers LEFT JOIN digests ON root_digest = digests.digest ORDER BY taken_at, connection"
    )
    _, rows, _ = history_sql.query(SessionHistory(tmp_path), query)
    assert rows == [
        (2, 1, FIRST, False),
        (3, 1, FIRST, False),
        (2, 1, THIRD, True),
        (2, None, None, False),
        (3, None, None, False),
        (4, 99, None, False),
        (2, 1, None, True),
    ]
