"""Characters that affect a terminal, a log or a reader are made visible; all others are unchanged."""

from __future__ import annotations

import json
import logging
import sys
import unicodedata

import pytest

from innoscope.common import sanitize
from innoscope.common.labels import LIMIT, label
from innoscope.common.logs import Structured
from innoscope.metrics import registry
from innoscope.metrics.families import expose
from innoscope.metrics.merge import ExportedSeries

#: Escape, bell, the C1 control CSI, DEL, direction marks, line ends, invisible characters, a lone surrogate.
NASTY = "\x1b]0;x\x07\x9b2J\x7f\u061c\u200e\u202e\u2066\u2069\u2028\u2029\u200b\ufeff\xad\U000e0041\udcff"


def test_control_characters_of_a_line_are_escaped() -> None:
    assert (
        sanitize.line("a\x1b[2J\n\tb\x9b\u202e\udcff\U000e0041") == r"a\x1b[2J\n\tb\x9b\u202e\udcff\U000e0041"
    )


@pytest.mark.parametrize("text", ["", "plain", "Ä 𝄞 ☃ · → 日本", "back\\slash"])
def test_printable_text_is_unchanged(text: str) -> None:
    assert sanitize.line(text) == sanitize.block(text) == text


def test_every_control_and_unassigned_character_is_escaped() -> None:
    categories = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    for first in range(0, sys.maxunicode + 1, 0x100):
        block = map(chr, range(first, first + 0x100))
        acting = "".join(one for one in block if unicodedata.category(one) in categories)
        for escaped in (sanitize.line(acting), sanitize.block(acting.replace("\n", ""))):
            assert escaped.isascii(), hex(first)
            assert escaped.isprintable(), hex(first)


def test_sanitizing_twice_changes_nothing() -> None:
    assert sanitize.line(sanitize.line(NASTY)) == sanitize.line(NASTY)
    assert sanitize.line(NASTY).isprintable()


def test_a_block_keeps_its_lines_and_expands_tabs() -> None:
    assert sanitize.block("a\tb\r\n\x1bc\n") == "a       b\\r\n\\x1bc\n"


def test_words_are_joined_to_one_line() -> None:
    assert sanitize.words("SELECT\n\t1\x00") == r"SELECT 1\x00"


@pytest.mark.parametrize(("limit", "cut"), [(None, "abcdef"), (6, "abcdef"), (5, "abcd…"), (1, "…")])
def test_long_lines_are_cut_at_the_limit(limit: int | None, cut: str) -> None:
    assert sanitize.line("abcdef", limit) == cut


def test_escapes_count_with_their_full_length() -> None:
    assert len(sanitize.line("\x1b" * 100, 20)) == 20


@pytest.mark.parametrize("options", [{}, {"indent": 2}, {"separators": (",", ":")}])
def test_sanitized_json_has_the_same_value(options: dict[str, object]) -> None:
    value = {NASTY: [NASTY, "Ä\n\t"], "𝄞": None}

    text = sanitize.dumps(value, **options)

    assert json.loads(text) == value
    assert all(line.isprintable() for line in text.split("\n"))
    assert "Ä" in text


@pytest.mark.parametrize("form", ["logfmt", "json"])
def test_log_lines_are_printable(form: str) -> None:
    record = logging.makeLogRecord({"msg": NASTY + "\n", "name": "a", "socket": NASTY, NASTY: "x"})
    try:
        raise ValueError(NASTY)
    except ValueError:
        record.exc_info = sys.exc_info()

    assert Structured(form).format(record).isprintable()


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
def test_unprintable_characters_of_labels_are_escaped(text: str, expected: str) -> None:
    assert label(text) == expected


@pytest.mark.parametrize("character", ["x", "\x1b", "\udcff", "\U0001f40d"])
def test_long_labels_are_cut_and_stay_distinct(character: str) -> None:
    one, other = label(character * 10_000 + "1"), label(character * 10_000 + "2")
    assert len(one) == len(other) == LIMIT
    assert one != other
    assert label(one) == one
    assert len(label(character * 10**6)) == LIMIT


def test_an_unprintable_label_does_not_break_the_exposition() -> None:
    """Use the label of a server with --port=\\xff, which cannot be encoded as UTF-8 unless it is escaped."""
    metrics = registry.default()
    up, threads = metrics["mysqld_up"], metrics["threads"]
    series = [
        ExportedSeries(up, "3306", (), 1),
        ExportedSeries(up, "\udcff\x1b[2J", (), 1),
        ExportedSeries(threads, "3306", tuple("\udcff\n" for _ in threads.labels), 1),
    ]
    for accept in ("", "application/openmetrics-text; version=1.0.0"):
        body = expose(series, accept)[0].decode()
        assert 'innoscope_mysqld_up{server="3306"} 1' in body
        assert r'server="\\xff\\x1b[2J"' in body
