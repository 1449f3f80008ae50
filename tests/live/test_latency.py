"""Test that the latency profile finds the wait class that raises p99, in incidents with a known cause."""

from __future__ import annotations

import itertools
import re
import threading
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Final

import pytest

from incidents.device import slow
from innoscope.memory.statements.layout import installed, text_members
from innoscope.probes.latency import text
from innoscope.probes.latency.model import LatencyOptions
from innoscope.probes.latency.run import run
from innoscope.sampling.profile.setup import Naming
from innoscope.target.discover import find_one
from safety.leftovers import breakpoints
from safety.well import assert_well
from scale import few
from servers import Server
from workloads import Fsync, Oltp, Readers, UpdateStorm, Writers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from innoscope.probes.latency.model import LatencyResult
    from innoscope.probes.latency.shares import Breakdown

SERVERS: Final = ("mysql-5.6.24", "mysql-8.0.31", "mariadb-11.4.5")
SECONDS: Final = 8.0
MS: Final = 1e6
#: Probe overhead budget. With the default, the profile would be refused, because the test servers execute too
#: many statements per second for two CPUs.
BUDGET: Final = 0.25
#: Statements per second that do not wait, so that the mean is low.
FAST: Final = 300
#: Minimum share of the p99 excess for the class that the profile must find.
SHARE: Final = 0.8
LAZY: Final = ("--innodb-flush-log-at-trx-commit=0",)
#: Wait classes of a commit: a client flushes the redo log, and others wait for it or for a log thread.
COMMIT: Final = ("fsync_redo", "redo_write_wait", "group_commit")
#: Number of clients that write, and the limit on writes per second (0: none), so that statements wait for a
#: checkpoint. On a slow device, MariaDB's statements wait for the latches of pages that the page cleaner is
#: writing.
STALL: Final = {"mysql-5.6.24": (4, 300), "mysql-8.0.31": (4, 300), "mariadb-11.4.5": (16, 0)}
REDO_LOG: Final = {
    "mysql-5.6.24": ("--innodb-log-file-size=2M",),
    "mysql-8.0.31": ("--innodb-redo-log-capacity=8M",),
    "mariadb-11.4.5": ("--innodb-log-file-size=4M",),
}


def profile(server: Server, seconds: float = SECONDS, budget: float = BUDGET) -> LatencyResult:
    target = find_one(server.pid)
    options = LatencyOptions(seconds, budget, installed().commands, text_members(target))
    result = run(target, options, Naming(), lambda _: None)
    print("\n".join(text.lines(result, target)))
    assert not breakpoints(server.pid)
    assert_well(server)
    return result


def excess(result: LatencyResult, *waits: str) -> float:
    """Return the share of these classes in the p99 excess, excluding runnable time."""
    assert result.overall is not None
    shares = {share.wait: share.excess or 0 for share in result.overall.shares}
    return sum(shares.get(wait, 0) for wait in waits) / (1 - shares.get("runnable", 0))


def check(result: LatencyResult) -> Breakdown:
    """Check properties that every profile must have, and return the breakdown."""
    found = result.overall
    assert found is not None
    assert result.error is None
    assert result.ended is None
    assert 0 < len(result.statements) <= result.total
    assert sum(share.mean for share in found.shares) == pytest.approx(1)
    assert sum(share.variance or 0 for share in found.shares) == pytest.approx(1)
    assert sum(share.excess or 0 for share in found.shares) == pytest.approx(1)
    return found


def worst(result: LatencyResult) -> str:
    return result.texts[result.digests[0].digest].upper().replace("`", "")


@contextmanager
def in_background(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run ``work`` in a thread while the block runs. ``work`` must return soon after the event is set."""
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def sleeping(server: Server, short_s: float, long_s: float) -> AbstractContextManager[None]:
    """Run statements of known durations while the block runs: one in 50 is long."""

    def repeat(stop: threading.Event) -> None:
        with closing(server.connect()) as connection, connection.cursor() as cursor:
            for number in itertools.count():
                if stop.is_set():
                    return
                cursor.execute(f"SELECT SLEEP({short_s if number % 50 else long_s})")

    return in_background(repeat)


@pytest.mark.parametrize("name", few(SERVERS, "mysql-5.6.24", reason="known durations on mysql-5.6.24"))
def test_known_durations(name: str) -> None:
    with Server(name) as server, sleeping(server, 0.005, 0.2):
        result = profile(server)
        found = check(result)
    assert 5 <= found.p50 / MS < 10
    assert 200 <= found.p99 / MS < 230
    # A short statement can be slow because its thread waits for a CPU.
    slow = sum(one.wall_ns - one.times.get("runnable", 0) >= 200 * MS for one in result.statements)
    assert slow == pytest.approx(0.02 * found.count, abs=2)
    assert excess(result, "user_sleep") >= 0.95
    assert [result.texts[one.digest] for one in result.digests] == ["SELECT `SLEEP` (?)"]


@pytest.mark.parametrize("name", few(SERVERS, "mysql-8.0.31", reason="commits on mysql-8.0.31"))
def test_slow_commits(name: str) -> None:
    with Server(name) as server, Readers(server, 4, megabytes=1, rate=FAST), Fsync(server, 4):
        with slow(server, writes=60):
            result = profile(server)
        check(result)
        assert excess(result, *COMMIT) >= SHARE
        assert worst(result).startswith("INSERT INTO T1")


def holding_a_row(server: Server, database: str) -> AbstractContextManager[None]:
    """Lock the row for 50 ms, repeatedly, while the block runs."""

    def hold(stop: threading.Event) -> None:
        with closing(server.connect(database=database, autocommit=False)) as connection:
            while not stop.is_set():
                with connection.cursor() as cursor:
                    cursor.execute("UPDATE t1 SET b = b + 1 WHERE a = 1")
                stop.wait(0.05)
                connection.commit()

    return in_background(hold)


@pytest.mark.parametrize("name", few(SERVERS, "mariadb-11.4.5", reason="row locks on mariadb-11.4.5"))
def test_row_lock_convoy(name: str) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(Server(name, options=LAZY))
        stack.enter_context(Readers(server, 4, megabytes=1, rate=FAST))
        storm = stack.enter_context(UpdateStorm(server, 3))
        stack.enter_context(holding_a_row(server, storm.database))
        result = profile(server)
        check(result)
        assert excess(result, "row_lock") >= SHARE
        assert worst(result).startswith("UPDATE T1 SET B = B + ?")


@pytest.mark.parametrize("name", few(SERVERS, "mysql-5.6.24", reason="checkpoints on mysql-5.6.24"))
def test_checkpoint_stall(name: str) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(Server(name, options=(*LAZY, *REDO_LOG[name])))
        stack.enter_context(Readers(server, 4, megabytes=1, rate=FAST))
        clients, writes = STALL[name]
        stack.enter_context(Writers(server, clients, megabytes=32, rewrite=True))
        stack.enter_context(slow(server, writes=writes))
        result = profile(server)
        check(result)
        assert excess(result, "redo_space") >= SHARE
        assert worst(result).startswith("UPDATE T1 SET B = B + ?")


@pytest.mark.parametrize("name", few(SERVERS, "mysql-8.0.31", reason="prepared statements on mysql-8.0.31"))
def test_prepared_statements_have_digests(name: str) -> None:
    """Use sysbench, which prepares its statements. Half of them select a row by its primary key."""
    with Server(name, options=LAZY) as server, Oltp(server, 2):
        result = profile(server, seconds=4, budget=1)
        check(result)
    total = len(result.statements)
    counts = {
        result.texts.get(one.digest, one.digest).replace("`", ""): one.breakdown.count
        for one in result.digests
    }
    unknown = sum(count for digest, count in counts.items() if digest.startswith("("))
    by_key = [
        count
        for digest, count in counts.items()
        if re.fullmatch(r"SELECT c FROM sbtest[1-4] WHERE id = \?", digest)
    ]
    print(f"{unknown} of {total} unknown, {sum(by_key)} by key")
    assert unknown <= 0.05 * total
    assert len(by_key) == 4
    assert sum(by_key) / (total - unknown) == pytest.approx(0.5, abs=0.05)
