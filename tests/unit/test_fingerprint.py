"""Fingerprints contain no literals, regardless of the server's version and sql_mode."""

from __future__ import annotations

import random
import time

import pytest

from innoscope.target.fingerprint import fingerprint, unfinished
from unit.planted_secrets import AMBIGUOUS, SECRET, random_statement

ROUNDS = 20_000


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("SELECT 1 WHERE p = 0b1011 AND d = DATE'2020-01-01'", "SELECT ? WHERE p = ? AND d = DATE?"),
        ("SELECT X'4142', x'41', N'a', n'a', _utf8'a', _utf8mb4 'a'", "SELECT ?, ?, ?, ?, ?, ?"),
        ("SELECT 0xdeadBEEF, 1e5, 1.5e-3, .5, 1_000, 42card", "SELECT ?, ?, ?, ?, ?, ?"),
        ('SELECT "it\'s", \'say "no"\', \'a\'\'b\', "a""b"', "SELECT ?, ?, ?, ?"),
        ("SELECT 'a\\\\', b", "SELECT ? …"),
        ("SELECT a -- don't\nFROM t # it's\nWHERE b=1", "SELECT a FROM t WHERE b=?"),
        ("SELECT a--1 FROM t", "SELECT a--? FROM t"),
        ("/*!40101 SET NAMES utf8 */", ""),
        ("SELECT `a``b`, t$x, $y FROM `t`", "SELECT `a``b`, t$x, $y FROM `t`"),
        ("SELECT a AS `\x1b]52;c;ZXZpbA==\x07`", "SELECT a AS `\\x1b]52;c;ZXZpbA==\\x07`"),
        ("INSERT INTO t VALUES (1,2),(3,4)", "INSERT INTO t VALUES (…)"),
    ],
)
def test_literals_are_replaced(statement: str, expected: str) -> None:
    assert fingerprint(statement) == expected


@pytest.mark.parametrize("statement", AMBIGUOUS)
def test_ambiguous_statement_is_cut_off(statement: str) -> None:
    assert SECRET not in fingerprint(statement)


def test_planted_secrets_never_appear() -> None:
    """Generate statements with the secret only inside literals or $$ bodies, for a random sql_mode."""
    chance = random.Random(17)  # noqa: S311
    for _ in range(ROUNDS):
        statement = random_statement(chance)
        assert SECRET not in fingerprint(statement), statement


def test_string_that_ends_with_a_backslash_cuts_off_the_rest() -> None:
    """Use a string that ends at its backslash under NO_BACKSLASH_ESCAPES, followed by a secret in quotes."""
    assert fingerprint(f"SELECT 'c:\\', '{SECRET}'") == "SELECT ? …"


@pytest.mark.parametrize(
    ("text", "open_"),
    [
        ("SELECT 'a", True),
        ("SELECT 'a'", False),
        ("SELECT 'a\\'", True),
        ("SELECT 'a''", True),
        ("SELECT 'a'''", False),
        ('SELECT "', True),
        ("-- 'a", False),
        ("", False),
        ("AS $$ let x = 'a'", True),
        ("AS $$ let x = 'a' $$", False),
        ("AS $js$ $$", True),
        ("SELECT /* a", True),
        ("SELECT /* a */", False),
        ("SELECT `a", True),
        ("SELECT `a`", False),
        ("SELECT $x", False),
    ],
)
def test_unfinished_literals_and_comments_are_recognized(text: str, open_: bool) -> None:
    assert unfinished(text) is open_


@pytest.mark.parametrize("piece", ["'", "''", "$$", "$a", "/*", "`", "(?,", "((1,", "1e", "\\'", "a\ufffd"])
def test_long_statement_takes_less_than_a_second(piece: str) -> None:
    began = time.process_time()

    fingerprint(piece * (4_000_000 // len(piece)))

    assert time.process_time() - began < 1
