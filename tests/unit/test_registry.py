"""The declarations of metrics: checked, bounded, and told the same in docs/metrics.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from innoscope.metrics import docs, registry

#: Names that dashboards rely on.
PROMISED = (
    "innoscope_mysqld_up", "innoscope_sql_up", "innoscope_threads", "innoscope_buffer_pool_dirty_pages",
    "innoscope_checkpoint_age_bytes", "innoscope_read_ahead_pages_total",
    "innoscope_read_ahead_requests_total",
    "innoscope_flushed_pages_total", "innoscope_fsync_seconds", "innoscope_deadlock_searches_total",
    "innoscope_deadlock_search_seconds_total", "innoscope_probe_attached", "innoscope_probe_overhead_ratio",
)  # fmt: skip
GOOD: dict[str, Any] = {"kind": "gauge", "sources": ["sql"], "help": "Words (Threads_running)."}


def wrong(name: str = "things", **changes: Any) -> list[str]:
    return registry.problems({"version": 1, "metrics": {name: {**GOOD, **changes}}})


def test_the_catalog_is_sound_and_keeps_its_promises() -> None:
    exported = {metric.exported for metric in registry.default()}

    assert set(PROMISED) <= exported


def test_the_worst_case_stays_within_three_thousand_series() -> None:
    assert sum(metric.most_series for metric in registry.default()) <= 3000


def test_the_documentation_is_what_the_catalog_says() -> None:
    page = Path(__file__).parents[2] / "docs" / "metrics.md"
    generated = "".join(f"{line}\n" for line in docs.markdown(registry.default()))

    assert page.read_text() == generated, "run: python -m innoscope.metrics.docs > docs/metrics.md"


def test_a_good_declaration_has_no_problem() -> None:
    assert wrong() == []
    assert wrong(labels={"file": ["data", "redo"], "site": 40}) == []


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("Things", {}, "snake_case"),
        ("things_total", {}, "exposition format adds"),
        ("innoscope_things", {}, "already"),
        ("wait_ms", {}, "base unit"),
        ("dirty_pct", {}, "base unit"),
        ("things", {"kind": "summary"}, "unknown kind"),
        ("things", {"kind": "histogram"}, "of seconds"),
        ("things", {"kind": "info", "labels": {"a": 1}}, "_info"),
        ("things_info", {"kind": "info"}, "says nothing"),
        ("things", {"labels": {"server": ["a"]}}, "another meaning"),
        ("things", {"labels": {"result": [False, True]}}, "bounded neither"),
        ("things", {"labels": {"site": 0}}, "bounded neither"),
        ("things", {"labels": {"site": ["a", "a"]}}, "twice"),
        ("things", {"sources": ["guess"]}, "unknown source"),
        ("things", {"sources": []}, "must be a list"),
        ("things", {"help": "Words."}, "where the number comes from"),
        ("things", {"help": "Words (a) and more"}, "full stop"),
        ("things", {"owner": 1}, "unknown key"),
    ],
)
def test_a_bad_declaration_is_named(name: str, changes: dict[str, Any], words: str) -> None:
    assert any(words in text for text in wrong(name, **changes))
