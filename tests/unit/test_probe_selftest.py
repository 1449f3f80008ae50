"""A probe that sees only part of what happens is found out by the server's own counter."""

from __future__ import annotations

from innoscope.probes.catalog import default_catalog
from innoscope.probes.selftest import ENOUGH, SelfTest

PAGES = ("flushed_pages", "buffer_pool_pages_written")


def _test() -> SelfTest:
    return SelfTest([default_catalog().probes["page_flush"]])


def _told(seen: float, told: float) -> tuple[dict[str, float], dict[str, float]]:
    return {PAGES[0]: seen}, {PAGES[1]: told}


def test_a_whole_probe_is_not_spoken_of() -> None:
    test = _test()
    assert test.compare(*_told(0, 5000)) == {}
    assert test.compare(*_told(ENOUGH, 5000 + ENOUGH)) == {}


def test_a_dead_copy_and_a_partly_inlined_one_are_found() -> None:
    """18 of 5,149 is what log_write_up_to of an 8.0.46 with link-time optimisation gave."""
    test = _test()
    test.compare(*_told(0, 0))
    assert "saw 18 of 5,149" in test.compare(*_told(18, 5149))["page_flush"]
    assert "saw 0 of" in test.compare(*_told(18, 9000))["page_flush"]


def test_too_little_says_nothing_and_a_restart_begins_anew() -> None:
    test = _test()
    test.compare(*_told(0, 1000))
    assert test.compare(*_told(0, 1000 + ENOUGH - 1)) == {}
    assert test.compare(*_told(0, 10)) == {}
    assert test.compare(*_told(ENOUGH, 10 + ENOUGH)) == {}


def test_without_the_counter_nothing_is_checked() -> None:
    assert _test().compare({PAGES[0]: 0}, {}) == {}
