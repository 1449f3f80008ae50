"""Test the findings about locks, read-ahead and the history list with synthetic evidence."""

from __future__ import annotations

import pytest

from innoscope.common.samples import Sample
from innoscope.diagnose.blockers import oldest_transaction
from innoscope.diagnose.evidence import ConnectionActivity
from innoscope.diagnose.metric_readings import ReadingHistory
from innoscope.diagnose.signals import Signals
from innoscope.diagnose.text import record, text
from innoscope.diagnose.unavailable import Unknown
from innoscope.diagnose.verdict import judge
from innoscope.sampling.snapshot_history import CLIENT, ObservedStack
from unit.evidence import evidence, names

WAITS = {"row_lock_waits": 0}, {"row_lock_waits": 40_000}
SEARCHES = {"deadlock_searches": 1_000.0, "deadlock_search_seconds": 0.1}
OLD = {"connection": "2", "state": "RUNNING", "seconds": "13", "rows_locked": "0", "text": ""}


def test_deadlock_searches_are_estimated_from_the_rate_of_waits() -> None:
    """Use a probe that measured 1,000 searches of 0.1 ms, and a rate of 4,000 new waits per second."""
    begun, ended = WAITS
    before, after = begun | SEARCHES, ended | SEARCHES
    [first, second] = judge(evidence({"row_lock": 100, "on_cpu": 3}, before, after)).findings
    assert first.name == "deadlock_search"
    assert "a search is running 40 % of the time: 4,000 lock waits begin per second" in first.evidence[0]
    assert "each with a search of 100 µs" in first.evidence[0]
    assert (second.name, second.follows_from) == ("row_lock_convoy", "deadlock_search")


def test_convoy_without_the_probe_is_not_a_deadlock_search() -> None:
    begun, ended = WAITS
    assert names(judge(evidence({"row_lock": 100}, begun, ended))) == ["row_lock_convoy"]
    with pytest.raises(Unknown):
        Signals(evidence({"row_lock": 100}, begun, ended))["fact.deadlock_search_load"]


def test_finding_names_the_waiting_statements_with_their_digests() -> None:
    waiting = ObservedStack(CLIENT, "row_lock", ("lock_wait_suspend_thread",), 30, (1, 2, 3))
    other = ObservedStack(CLIENT, "on_cpu", ("do_command",), 10, (4,))
    statements = tuple(
        ConnectionActivity(
            tid, "app", "web1", "Query", "", 1, "UPDATE t", tid, "ab" * 16 if tid < 3 else None
        )
        for tid in range(1, 5)
    )
    begun, ended = WAITS
    found = evidence({"row_lock": 100}, begun, ended, seen=(waiting, other), statements=statements)
    verdict = judge(found)
    [finding] = verdict.findings
    assert finding.statements == (("UPDATE t", "ab" * 16, 2), ("UPDATE t", None, 1))
    assert "   statement of 2 threads: UPDATE t (digest abababababab)" in list(text(found, verdict))
    assert record(found, verdict)["findings"][0]["statements"][0] == {
        "text": "UPDATE t", "digest": "ab" * 16, "threads": 2,
    }  # fmt: skip


READ_AHEAD = (
    "read_ahead_pages.linear",
    "read_ahead_pages.random",
    "read_ahead_evicted_pages",
    "buffer_pool_pages_read",
)


@pytest.mark.parametrize(
    ("numbers", "found"),
    [
        ((100_000, 0, 80_000, 150_000), ["read_ahead_harm"]),
        ((100_000, 0, 1_000, 150_000), []),
        ((1_000, 0, 900, 150_000), []),
        ((0, 30_000, 1_000, 150_000), ["random_read_ahead"]),
        ((0, 6_000, 1_000, 150_000), []),
        ((0, 100_000, 80_000, 150_000), ["random_read_ahead", "read_ahead_harm"]),
        ((100_000, 300, 1_000, 150_000), []),
    ],
    ids=["wasted", "useful", "little", "random", "a little random", "random and wasted", "mostly linear"],
)
def test_read_ahead_that_is_wasted_or_random_is_found(
    numbers: tuple[int, int, int, int], found: list[str]
) -> None:
    before, after = dict.fromkeys(READ_AHEAD, 0), dict(zip(READ_AHEAD, numbers, strict=True))
    assert names(judge(evidence({"on_cpu": 4}, before, after))) == found


@pytest.mark.parametrize(
    ("transactions", "length", "found"),
    [((OLD,), 90_000, True), ((), 90_000, False), ((), 900_000, True), ((OLD,), 9_000, False)],
    ids=["old snapshot", "between two purges", "purge is too slow", "short"],
)
def test_long_history_needs_an_old_snapshot_or_a_slow_purge(
    transactions: tuple[dict[str, str], ...], length: int, found: bool
) -> None:
    first, last = {"history_list_length": length // 2}, {"history_list_length": length}
    verdict = judge(evidence({"on_cpu": 4}, first, last, answers={"transactions": transactions}))
    assert ("history_list" in names(verdict)) is found


@pytest.mark.parametrize(
    ("isolation", "text", "seconds"),
    [
        ("REPEATABLE READ", "", 40.0),
        ("SERIALIZABLE", "", 40.0),
        ("READ COMMITTED", "", 0.0),
        ("READ UNCOMMITTED", "", 0.0),
        ("READ COMMITTED", "SELECT ?", 5.0),
        ("", "", 40.0),
    ],
)
def test_only_transactions_with_a_read_view_delay_purge(isolation: str, text: str, seconds: float) -> None:
    """Use a transaction that has been open for 40 s.

    The isolation level is empty in incident files from Innoscope versions that did not store it.
    """
    row = {"connection": "3", "state": "RUNNING", "seconds": "40", "rows_locked": "0", "text": text}
    length = {"history_list_length": 900_000}
    found = evidence(
        {"on_cpu": 4}, length, length,
        statements=(ConnectionActivity(3, "app", "web1", "Query", "", 5, text),),
        answers={"transactions": (row | ({"isolation": isolation} if isolation else {}),)},
    )  # fmt: skip
    assert Signals(found)["fact.oldest_view_seconds"] == seconds
    assert Signals(found)["fact.oldest_transaction_seconds"] == 40
    assert bool(oldest_transaction(found)) == (seconds > 0)


class _ConstantCollector:
    """A collector that always returns the same value."""

    timeout = 1.0

    def __init__(self, name: str, value: float) -> None:
        self.name, self._value = name, value

    def collect(self) -> tuple[Sample, ...]:
        return (Sample("read_ahead_pages", self._value, ("linear",)),)


def test_exact_count_is_preferred_to_an_estimate() -> None:
    readings = ReadingHistory((_ConstantCollector("probes", 214_000.0), _ConstantCollector("sql", 11_600.0)))
    for _ in range(2):
        readings.read(5)
    snapshots, _ = readings.between(0, float("inf"))
    readings.close()
    assert [one.values["read_ahead_pages.linear"] for one in snapshots] == [11_600.0, 11_600.0]
