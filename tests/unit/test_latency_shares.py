"""The shares of wait classes in the mean, the variance and the p99 excess of statements."""

from __future__ import annotations

import random

import pytest

from innoscope.probes.latency.shares import StatementLatency, analyze, by_digest, quantile

MS = 1_000_000


def statement(digest: str = "a", **times: float) -> StatementLatency:
    parts = {wait: round(time * MS) for wait, time in times.items()}
    return StatementLatency(digest, sum(parts.values()), parts)


def test_quantiles_are_nearest_ranks() -> None:
    hundred = list(range(1, 101))
    assert [quantile(hundred, fraction) for fraction in (0.5, 0.95, 0.99, 1.0)] == [50, 95, 99, 100]
    assert [quantile([7], fraction) for fraction in (0.0, 0.5, 0.99)] == [7, 7, 7]


def test_a_class_that_only_slow_statements_wait_for_has_the_whole_excess() -> None:
    made = analyze([statement(on_cpu=1)] * 99 + [statement(on_cpu=1, fsync_redo=80)] * 1)
    assert (made.p50, made.p99, made.maximum) == (MS, MS, 81 * MS)
    made = analyze([statement(on_cpu=1)] * 98 + [statement(on_cpu=1, fsync_redo=80)] * 2)
    assert (made.count, made.p99, made.tail) == (100, 81 * MS, 2)
    assert made.excess == pytest.approx(78.4 * MS)
    [fsync, cpu] = made.shares
    assert (fsync.wait, cpu.wait) == ("fsync_redo", "on_cpu")
    assert [fsync.excess, fsync.variance] == pytest.approx([1, 1])
    assert fsync.mean == pytest.approx(160 / 260)
    assert [cpu.excess, cpu.variance] == pytest.approx([0, 0])


def test_a_constant_wait_explains_the_mean_but_not_the_tail() -> None:
    made = analyze([statement(fsync_redo=10)] * 98 + [statement(fsync_redo=10, row_lock=30)] * 2)
    shares = {share.wait: share for share in made.shares}
    assert shares["fsync_redo"].mean > 0.9
    assert shares["row_lock"].excess == pytest.approx(1)


def test_shares_can_be_negative() -> None:
    made = analyze([statement(on_cpu=2)] * 98 + [statement(on_cpu=1, row_lock=9)] * 2)
    shares = {share.wait: share for share in made.shares}
    assert shares["on_cpu"].excess is not None
    assert shares["on_cpu"].excess < 0
    assert shares["row_lock"].excess is not None
    assert shares["row_lock"].excess > 1


def test_each_share_adds_up_to_one() -> None:
    chance = random.Random(4)  # noqa: S311 - the same numbers in each run
    made = analyze(
        [
            statement(
                on_cpu=chance.expovariate(1), runnable=chance.random(), row_lock=chance.paretovariate(1.5)
            )
            for _ in range(5_000)
        ]
    )
    assert sum(share.mean for share in made.shares) == pytest.approx(1)
    assert sum(share.variance or 0 for share in made.shares) == pytest.approx(1)
    assert sum(share.excess or 0 for share in made.shares) == pytest.approx(1)
    assert made.p50 < made.p95 < made.p99 < made.maximum


def test_equal_latencies_have_no_variance_and_no_excess() -> None:
    made = analyze([statement(on_cpu=1, runnable=1)] * 3)
    assert made.excess == 0
    assert {(share.mean, share.variance, share.excess) for share in made.shares} == {(0.5, None, None)}
    assert analyze([StatementLatency("a", 0, {})]).shares == ()


def test_the_digest_with_most_of_the_slowest_statements_comes_first() -> None:
    found = by_digest(
        [statement("fast", on_cpu=1)] * 190
        + [statement("often slow", row_lock=50)] * 4
        + [statement("slowest once", row_lock=60)]
        + [statement("often slow", on_cpu=1)] * 5
    )
    assert [(one.digest, one.slowest) for one in found] == [
        ("often slow", 4),
        ("slowest once", 1),
        ("fast", 0),
    ]
    assert found[0].breakdown.count == 9
    assert by_digest([]) == []
