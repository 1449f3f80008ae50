"""Untrusted text as a label value: printable, bounded and unambiguous."""

from __future__ import annotations

import pytest

from innoscope.common.sanitize import LIMIT, label
from innoscope.metrics import registry
from innoscope.metrics.families import expose
from innoscope.metrics.merge import Series


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3306", "3306"),
        ("größe ☃", "größe ☃"),
        ("\udcff\x1b[2J", r"\xff\x1b[2J"),
        ("a\nb\u202ec\u0085", r"a\x0ab\u202ec\x85"),
        ("\ud800", r"\ud800"),
    ],
)
def test_unprintable_characters_are_escaped(text: str, expected: str) -> None:
    assert label(text) == expected


def test_long_labels_are_cut_and_stay_distinct() -> None:
    one, other = label("x" * 10_000 + "1"), label("x" * 10_000 + "2")
    assert len(one) == len(other) == LIMIT
    assert one != other
    assert len(label("\x1b" * 10**6)) == LIMIT


def test_an_unprintable_label_does_not_break_the_exposition() -> None:
    """A server started with --port=\\xff once made /metrics answer 500."""
    metrics = registry.default()
    up, threads = metrics["mysqld_up"], metrics["threads"]
    series = [
        Series(up, "3306", (), 1),
        Series(up, "\udcff\x1b[2J", (), 1),
        Series(threads, "3306", tuple("\udcff\n" for _ in threads.labels), 1),
    ]
    for accept in ("", "application/openmetrics-text; version=1.0.0"):
        body = expose(series, accept)[0].decode()
        assert 'innoscope_mysqld_up{server="3306"} 1' in body
        assert r'server="\\xff\\x1b[2J"' in body
