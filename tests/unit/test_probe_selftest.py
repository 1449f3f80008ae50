"""Comparing a probe with the server's own counter shows whether the probe misses hits."""

from __future__ import annotations

from innoscope.probes.catalog import default_catalog
from innoscope.probes.selftest import ENOUGH, SelfTest

PAGES = ("flushed_pages", "buffer_pool_pages_written")


def _test() -> SelfTest:
    return SelfTest([default_catalog().probes["page_flush"]])


def _counts(seen: float, counted: float) -> tuple[dict[str, float], dict[str, float]]:
    return {PAGES[0]: seen}, {PAGES[1]: counted}


def test_a_complete_probe_is_not_reported() -> None:
    test = _test()
    assert test.compare(*_counts(0, 5000)) == {}
    assert test.compare(*_counts(ENOUGH, 5000 + ENOUGH)) == {}


def test_a_probe_that_misses_hits_is_reported() -> None:
    """Use the counts of log_write_up_to in an LTO build of MySQL 8.0.46: 18 probe hits for 5,149 calls."""
    test = _test()
    test.compare(*_counts(0, 0))
    assert "counted 18 of 5,149" in test.compare(*_counts(18, 5149))["page_flush"]
    assert "counted 0 of" in test.compare(*_counts(18, 9000))["page_flush"]


def test_few_events_prove_nothing_and_a_restart_resets_the_comparison() -> None:
    test = _test()
    test.compare(*_counts(0, 1000))
    assert test.compare(*_counts(0, 1000 + ENOUGH - 1)) == {}
    assert test.compare(*_counts(0, 10)) == {}
    assert test.compare(*_counts(ENOUGH, 10 + ENOUGH)) == {}


def test_a_missing_counter_disables_the_check() -> None:
    assert _test().compare({PAGES[0]: 0}, {}) == {}
