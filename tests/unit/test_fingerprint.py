"""Fingerprints contain no literals, regardless of the server's version and sql_mode."""

from __future__ import annotations

import random
import time

import pytest

from innoscope.target.fingerprint import fingerprint, unfinished

SECRET = "hunter2"  # noqa: S105
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


@pytest.mark.parametrize(
    "statement",
    [
        # a function body of MySQL 9, with and without a tag, and the same text on an older server
        f"CREATE FUNCTION f() RETURNS INT LANGUAGE JAVASCRIPT AS $$ let password = {SECRET} $$",
        f"CREATE FUNCTION f() LANGUAGE JAVASCRIPT AS $js$ $$ '{SECRET} $js$",
        f"SELECT $$ FROM t WHERE x='a $$ {SECRET}'",
        f"AS $\N{GRINNING FACE}$ {SECRET} $\N{GRINNING FACE}$",
        # comments that some servers execute
        f"/*!50000 SELECT '*/' */ '{SECRET}'",
        f"/*!99999 /* a */ don't */ '{SECRET}'",
        f"/*! # */ ' \n '{SECRET}' */",
        f"/*M!100000 -- */ ' \n '{SECRET}' */",
        f"SELECT /*+ QB_NAME(`*/`) */ ' */ ` {SECRET}'",
        # the start of a comment depends on the character set
        f"SELECT 1--\xa0'x\n{SECRET}', '",
        f"SELECT 1--\x01 ' \n, '{SECRET}'",
        # a string without backslash escapes; a truncated multi-byte character that includes the backtick
        f"SELECT 'a\\', ' {SECRET}'",
        f"SELECT \ufffd` , '{SECRET}', `b`",
        f"SELECT `\ufffd`, '{SECRET}', `b`",
        # syntax errors
        f"SELECT ` FROM t WHERE x='{SECRET}'",
        f"SELECT q'[it's {SECRET}]'",
    ],
)
def test_ambiguous_statement_is_cut_off(statement: str) -> None:
    assert SECRET not in fingerprint(statement)


def test_planted_secrets_never_appear() -> None:
    """Build statements from random pieces. Secrets are only in literals, as the sql_mode defines literals."""
    chance = random.Random(17)  # noqa: S311
    for _ in range(ROUNDS):
        escapes = chance.random() < 0.5
        pieces = [_piece(chance, escapes) for _ in range(chance.randint(1, 9))]
        statement = "".join(pieces)[: chance.choice((None, 40, 80))]

        assert SECRET not in fingerprint(statement), (escapes, statement)


def _piece(chance: random.Random, escapes: bool) -> str:
    space = chance.choice(("", " ", "\n", "\t", "\xa0", ","))
    kinds = (_literal, _literal, _literal, _comment, _comment, _name, _name, _body, _run)
    return space + chance.choice(kinds)(chance, escapes) + space


def _literal(chance: random.Random, escapes: bool) -> str:
    quote = chance.choice("'\"")
    inside = "".join(chance.choice(_inside(quote, escapes)) for _ in range(chance.randint(0, 5)))
    prefix = chance.choice(("", "N", "n", "x", "X", "b", "_utf8", "_latin1 ", "DATE", "@"))
    return f"{prefix}{quote}{inside}{SECRET}{quote}"


def _body(chance: random.Random, escapes: bool) -> str:
    """Return a function body as in MySQL 9, delimited by ``$$`` or ``$tag$``."""
    del escapes
    tag = chance.choice(("$$", "$js$", "$\xe9$"))
    inside = "".join(chance.choice(("'", '"', "`", "/*", "a$", "--", "#", " ", "\n", "\\")) for _ in range(4))
    return f" {tag}{inside} {SECRET} {tag}"


def _run(chance: random.Random, escapes: bool) -> str:
    """Return an executable comment with literals, which may contain ``*/``."""
    begin = chance.choice(("/*!", "/*!50000 ", "/*M!100000 ", "/*!99999 /* a */ "))
    return f"{begin}{_literal(chance, escapes)} {chance.choice(('', '# */ '))}\n{_literal(chance, escapes)}*/"


def _inside(quote: str, escapes: bool) -> tuple[str, ...]:
    """Return the pieces that a literal in ``quote`` may contain, with or without backslash escapes."""
    other = '"' if quote == "'" else "'"
    always = (quote * 2, other, "`", "/*", "*/", "-- ", "#", "$$", "$a$", ";", "\n", "(", ",", "a")
    return (*always, f"\\{quote}", "\\\\", "\\n") if escapes else (*always, "\\" + other, "\\a")


def _comment(chance: random.Random, escapes: bool) -> str:
    del escapes
    inside = "".join(chance.choice(("a", "'", '"', "`", "$$", "#", "--", " ", "/")) for _ in range(4))
    return chance.choice((f"/*{inside}*/", f"#{inside}\n", f"-- {inside}\n", f"--\t{inside}\n"))


def _name(chance: random.Random, escapes: bool) -> str:
    del escapes
    names = ("a", "t.b", "`c`", "`d``e`", "`'`", '`"`', "`/*`", "`-- `", "@v", "@@g.x", "12", "é", "$x")
    return f" {chance.choice(names)} "


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
def test_unfinished_literals_and_comments_are_recognised(text: str, open_: bool) -> None:
    assert unfinished(text) is open_


@pytest.mark.parametrize("piece", ["'", "''", "$$", "$a", "/*", "`", "(?,", "((1,", "1e", "\\'", "a\ufffd"])
def test_long_statement_takes_less_than_a_second(piece: str) -> None:
    began = time.process_time()

    fingerprint(piece * (4_000_000 // len(piece)))

    assert time.process_time() - began < 1
