"""What could act on a terminal, a log or a reader becomes visible; all else stays."""

from __future__ import annotations

import json
import logging
import sys
import unicodedata

import pytest

from innoscope.common import sanitize
from innoscope.common.logs import Structured

#: Escape, bell, CSI of C1, DEL, what turns the order of writing, ends lines or is not seen, half a character.
NASTY = "\x1b]0;x\x07\x9b2J\x7f\u061c\u200e\u202e\u2066\u2069\u2028\u2029\u200b\ufeff\xad\U000e0041\udcff"


def test_one_line() -> None:
    assert (
        sanitize.line("a\x1b[2J\n\tb\x9b\u202e\udcff\U000e0041") == r"a\x1b[2J\n\tb\x9b\u202e\udcff\U000e0041"
    )


@pytest.mark.parametrize("text", ["", "plain", "Ä 𝄞 ☃ · → 日本", "back\\slash"])
def test_what_is_printable_stays(text: str) -> None:
    assert sanitize.line(text) == sanitize.block(text) == text


def test_every_character_that_acts_is_escaped() -> None:
    categories = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    for first in range(0, sys.maxunicode + 1, 0x100):
        block = map(chr, range(first, first + 0x100))
        acting = "".join(one for one in block if unicodedata.category(one) in categories)
        for escaped in (sanitize.line(acting), sanitize.block(acting.replace("\n", ""))):
            assert escaped.isascii(), hex(first)
            assert escaped.isprintable(), hex(first)


def test_twice_is_the_same_as_once() -> None:
    assert sanitize.line(sanitize.line(NASTY)) == sanitize.line(NASTY)
    assert sanitize.line(NASTY).isprintable()


def test_several_lines() -> None:
    assert sanitize.block("a\tb\r\n\x1bc\n") == "a       b\\r\n\\x1bc\n"


def test_words_are_on_one_line() -> None:
    assert sanitize.words("SELECT\n\t1\x00") == r"SELECT 1\x00"


@pytest.mark.parametrize(("limit", "cut"), [(None, "abcdef"), (6, "abcdef"), (5, "abcd…"), (1, "…")])
def test_limits(limit: int | None, cut: str) -> None:
    assert sanitize.line("abcdef", limit) == cut


def test_an_escape_counts_by_its_length() -> None:
    assert len(sanitize.line("\x1b" * 100, 20)) == 20


@pytest.mark.parametrize("options", [{}, {"indent": 2}, {"separators": (",", ":")}])
def test_json_means_the_same(options: dict[str, object]) -> None:
    value = {NASTY: [NASTY, "Ä\n\t"], "𝄞": None}

    text = sanitize.dumps(value, **options)

    assert json.loads(text) == value
    assert all(line.isprintable() for line in text.split("\n"))
    assert "Ä" in text


@pytest.mark.parametrize("form", ["logfmt", "json"])
def test_logs(form: str) -> None:
    record = logging.makeLogRecord({"msg": NASTY + "\n", "name": "a", "socket": NASTY, NASTY: "x"})
    try:
        raise ValueError(NASTY)
    except ValueError:
        record.exc_info = sys.exc_info()

    assert Structured(form).format(record).isprintable()
