"""Test that `trace` finds a function's callers, and refuses hot functions or reports their true cost."""

from __future__ import annotations

import re
import threading
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from bpftrace import Bpftrace
from innoscope.target.discover import find_one
from safety.command import innoscope
from safety.leftovers import breakpoints
from safety.tracing import Tracing, trace
from safety.well import assert_well
from scale import long
from servers import Server
from waiting import until
from workloads import Cpu, Fsync

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: Call path by which a transaction's row locks get memory from the buffer pool.
LOCK_PATH = ("lock_rec_lock", "lock_rec_create", "mem_heap_create_block", "buf_block_alloc")
READ_PATH = ("buf_page_init_for_read",)
#: Names of the copies of the table. Most blocks are allocated for pages, and only a few for locks. With
#: two copies, the server allocates enough blocks for locks.
COPIES = ("one", "two")
_TENTH = 100_000_000  # ns
#: Maximum seconds by which the trial slows down a call: two probe hits of half a microsecond each.
_SLOWER_S = 1e-6
#: Seconds between two samples of a counter.
_INTERVAL_S = 0.1
#: Number of rates to measure before the trials, while Innoscope uses no CPU time.
_UNDISTURBED = 10
POOL = (
    "--innodb-buffer-pool-size=8M",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-flush-method=O_DIRECT",
)


def _uprobe(server: Server, function: str) -> str:
    target = find_one(server.pid)
    path = target.executable.removeprefix(target.root if target.root != "/" else "")
    return f"uprobe:/proc/{server.pid}/root{path}:{function} /pid == {server.pid}/"


def _fill(server: Server, megabytes: int) -> None:
    """Create a table much larger than the buffer pool, with small rows for many locks per page."""
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE post")
        cursor.execute("CREATE TABLE post.big (a INT PRIMARY KEY AUTO_INCREMENT, b INT) ENGINE=InnoDB")
        cursor.execute("INSERT INTO post.big (b) VALUES (1), (2), (3), (4)")
        rows = 4
        while rows * 32 < megabytes << 20:
            cursor.execute("INSERT INTO post.big (b) SELECT b FROM post.big")
            rows *= 2


@pytest.fixture(scope="module")
def old() -> Iterator[Server]:
    with Server("mysql-5.5.9", options=POOL) as server:
        _fill(server, 48)
        yield server


def _settle(server: Server) -> None:
    """Wait until background threads neither read nor write pages."""
    names = "'Innodb_pages_read', 'Innodb_pages_created', 'Innodb_pages_written'"
    deadline = time.monotonic() + 60
    last: object = None
    while (now := server.sql(f"SHOW GLOBAL STATUS WHERE Variable_name IN ({names})")) != last:
        assert time.monotonic() < deadline, "the server does not become idle"
        last = now
        time.sleep(1.2)


def _functions(stack: dict[str, Any]) -> list[str]:
    return [frame["function"] for frame in stack["frames"]]


def _share(document: dict[str, Any], path: tuple[str, ...]) -> float:
    """Return the share of the calls whose stacks contain all functions of ``path``."""
    stacks = document["callers"]["stacks"]
    return float(sum(stack["share"] for stack in stacks if set(path) <= set(_functions(stack))))


@long("it takes half a minute; the tests below trace functions in make test")
def test_callers_that_allocate_from_the_buffer_pool_are_found(old: Server) -> None:
    """Use up the free blocks of a small buffer pool with CREATE TABLE … SELECT."""
    function = "buf_LRU_get_free_block"
    with closing(old.connect()) as connection, connection.cursor() as cursor:
        _settle(old)
        with Bpftrace(f"{_uprobe(old, function)} {{ @n[nsecs / {_TENTH}] = count(); }}") as bpftrace:
            # the budget is unlimited, because the test needs all calls to be counted
            tracing = Tracing(old, function, "--callers", "--seconds", 120, "--json", "--budget", 1)
            with tracing:
                began = time.monotonic_ns() // _TENTH
                _settle(old)
                for copy in COPIES:
                    cursor.execute(f"CREATE TABLE post.{copy} ENGINE=InnoDB SELECT * FROM post.big")
                _settle(old)
                ended = time.monotonic_ns() // _TENTH
    seen = tracing.document()
    # count only during the trace, because the server sometimes allocates blocks at other times
    expected = sum(count for at, count in bpftrace.maps["@n"].items() if began <= int(at) <= ended)
    locks, reads = _share(seen, LOCK_PATH), _share(seen, READ_PATH)
    assert seen["calls"] == pytest.approx(expected, rel=0.01)
    assert seen["latency"]["calls"] == pytest.approx(seen["calls"], rel=0.01)
    assert locks > 0
    assert reads > locks
    [stack, *_] = [each for each in seen["callers"]["stacks"] if set(LOCK_PATH) <= set(_functions(each))]
    order = [_functions(stack).index(name) for name in (function, *reversed(LOCK_PATH))]
    assert order == sorted(order), "from the allocation out to the lock"


class _Scans(Cpu):
    """A load with as many page accesses and row reads as possible."""

    def statements(self) -> Sequence[str]:
        return ["SELECT b FROM t1 WHERE a = $R", "SELECT COUNT(b) FROM t1 WHERE a <= 300"]


@pytest.fixture(scope="module")
def busy() -> Iterator[Server]:
    options = ("--innodb-adaptive-hash-index=OFF",)  # the adaptive hash index would avoid most page accesses
    with Server("mysql-5.6.24", options=options) as server, _Scans(server, 4):
        yield server


@contextmanager
def _rates(server: Server, variable: str) -> Iterator[list[float]]:
    """Measure a status variable's increase per second in each interval while the block runs."""
    rates: list[float] = []
    ended = threading.Event()

    def measure() -> None:
        with closing(server.connect()) as connection, connection.cursor() as cursor:
            value, at = 0, 0.0
            while not ended.wait(_INTERVAL_S):
                cursor.execute("SHOW GLOBAL STATUS LIKE %s", (variable,))
                last, last_at = value, at
                value, at = int(cursor.fetchone()[1]), time.monotonic()
                if last_at:
                    rates.append((value - last) / (at - last_at))

    thread = threading.Thread(target=measure)
    thread.start()
    try:
        yield rates
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("function", ["buf_page_get_gen", "row_search_for_mysql"])
def test_hot_function_is_refused(busy: Server, function: str) -> None:
    durations = []
    for _ in range(2):
        result = innoscope("trace", "--pid", busy.pid, function)
        assert result.returncode == 14, result.stderr
        assert result.stdout == ""
        assert _calls_per_second(result.stderr) > 0
        assert re.search(r"would cost [\d.]+% of its \d CPUs", result.stderr)
        assert "instead: " in result.stderr
        assert "--force" in result.stderr
        durations.append(_number(r"probed for ([\d,]+) ms", result.stderr))
    assert min(durations) < 1000  # a stall of the host may prolong one of them
    assert_well(busy)
    assert breakpoints(busy.pid) == set()


def test_refusal_tells_the_rate_of_calls(busy: Server) -> None:
    """Compare the rate of a function that is called once per row with the server's rate of row reads.

    A trial is so short that other work on the host can lower the measured rate, but not raise it.
    """
    with _rates(busy, "Innodb_rows_read") as rates:
        until(lambda: len(rates) >= _UNDISTURBED)
        trials = [innoscope("trace", "--pid", busy.pid, "row_search_for_mysql") for _ in range(3)]
    rate = max(_calls_per_second(trial.stderr) for trial in trials)
    assert rate <= max(rates)
    # The trial slows each call down by the cost of two hits. The lowest rate may be that of a stall.
    assert 1 / rate < 1 / sorted(rates)[1] + _SLOWER_S


def _calls_per_second(text: str) -> float:
    return _number(r"([\d,]+) calls per second", text)


def _number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    assert found, text
    return float(found[1].replace(",", ""))


def test_forced_trace_ends_in_time_and_reports_its_cost(busy: Server) -> None:
    traced, elapsed = [], []
    for _ in range(2):
        began = time.monotonic()
        seen = trace(busy, "row_search_for_mysql", "--force", "--seconds", 2)
        elapsed.append(time.monotonic() - began)
        traced.append(seen["seconds"])
        loss = seen["loss"]
        before, during = (loss[when]["statements"] for when in ("before", "during"))
        assert seen["calls"] > 1000
        assert loss["share"] > 0.01
        assert loss["cpu_seconds"] == pytest.approx(seen["cost"]["seconds"])
        assert before > 0
        assert during > 0
        assert breakpoints(busy.pid) == set()
    # a stall of the host may prolong one of them
    assert min(traced) == pytest.approx(2, abs=0.5)
    assert min(elapsed) < 20


def test_argument_values_add_up_to_the_calls(busy: Server) -> None:
    """Trace the descriptor argument of fsync, which has few distinct values."""
    with Fsync(busy, 2):
        seen = trace(busy, "fsync", "--arg", 0, "--bits", 32, "--seconds", 1, "--budget", 1)
    values = seen["argument"]["values"]
    assert values
    assert sum(count for _, count in values) == sum(count for _, count in seen["argument"]["octaves"])
    assert sum(count for _, count in values) == seen["calls"]
    assert all(0 <= value < 1 << 20 for value, _ in values)
