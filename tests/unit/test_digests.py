"""Digest texts match those of the server and contain no literals, and the ids of digests are stable."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from innoscope.target.digests import MAX_CHARS, SharedDigests, digest, is_unfinished, without_literals
from unit.planted_secrets import AMBIGUOUS, SECRET, random_statement

#: A secret that begins with letters.
WORD = SECRET
#: A secret that consists of digits.
DIGITS = "48151623"
CONTEXTS: tuple[dict[str, Any], ...] = (
    {},
    {"version": (8, 0, 31)},
    {"version": (9, 7, 4)},
    {"flavour": "mariadb", "version": (10, 11, 6)},
)

#: Statements and their digest texts in MySQL 8.0.31 and 9.7.
TEXTS = {
    "select * from t": "SELECT * FROM `t`",
    "SELECT a.b, `a``b` FROM db.t AS a;": "SELECT `a` . `b` , `a`b` FROM `db` . `t` AS `a`",
    "SELECT a /* b */ FROM t -- c": "SELECT `a` FROM `t`",
    "SELECT a -- b\nFROM t # c": "SELECT `a` FROM `t`",
    "SELECT /*!50000 a */ FROM t": "SELECT `a` FROM `t`",
    "SELECT /*!99999 a, */ 1": "SELECT ?",
    "SELECT status, t.status, MAX(a), max": "SELECT STATUS , `t` . `status` , MAX ( `a` ) , `max`",
    "SELECT 1": "SELECT ?",
    "SELECT 1, 'a', 0x1F, x'1F', b'1', .5, 1e-3": "SELECT ?, ...",
    "SELECT -1, (+ - 1), 5 - 1": "SELECT ? , (?) , ? - ?",
    "SELECT a - 1, a -1, -a FROM t": "SELECT `a` - ? , `a` - ? , - `a` FROM `t`",
    "SELECT N'a', _utf8mb4'a', 'a' 'b'": "SELECT ? , (_charset) ?, ... ?",
    "SELECT a FROM t WHERE a IN (1)": "SELECT `a` FROM `t` WHERE `a` IN (...)",
    "SELECT a FROM t WHERE a IN (1, 2, 3)": "SELECT `a` FROM `t` WHERE `a` IN (...)",
    "INSERT INTO t VALUES (1)": "INSERT INTO `t` VALUES (?)",
    "INSERT INTO t VALUES (1), (2)": "INSERT INTO `t` VALUES (?) /* , ... */",
    "INSERT INTO t VALUES (1, 2)": "INSERT INTO `t` VALUES (...)",
    "INSERT INTO t VALUES (1, NULL), (3, 'x'), (4, 5)": "INSERT INTO `t` VALUES (...) /* , ... */",
    "SELECT a IS NULL, a IS NOT NULL, NULL, NOT NULL": ("SELECT `a` IS NULL , `a` IS NOT NULL , ? , NOT ?"),
    "CREATE TABLE t (a INT NOT NULL, b INT NULL, c INT DEFAULT NULL)": (
        "CREATE TABLE `t` ( `a` INTEGER NOT NULL , `b` INTEGER NULL , `c` INTEGER DEFAULT ? )"
    ),
    "SELECT @a, @'b', @`c`, @@global.port, @@x": "SELECT @? , @? , @`c` , @@GLOBAL . `port` , @@`x`",
    "SET PASSWORD FOR 'u'@'h' = 'p'": "SET PASSWORD FOR ? @? = ?",
    "SELECT /*+ QB_NAME(q) BKA(t@q) */ 1": "SELECT /*+ QB_NAME ( `q` ) BKA ( `t`@`q` ) */ ?",
    "SELECT /*+ MAX_EXECUTION_TIME(5) */ 1": "SELECT /*+ MAX_EXECUTION_TIME (?) */ ?",
    "SELECT a<>1 && b || c": "SELECT `a` != ? && `b` || `c`",
    "SELECT 1a, 2.b, 0xG FROM 1.2": "SELECT `1a` , ? `b` , `0xG` FROM ?",
    "SELECT a FROM t WHERE a = ?": "SELECT `a` FROM `t` WHERE `a` = ?",
    f"SELECT {'a' * 65}, b": "SELECT ..., `b`",
    "SELECT 1 WHERE p = 0b1011 AND d = DATE'2020-01-01'": "SELECT ? WHERE `p` = ? AND `d` = DATE ?",
    "SELECT X'4142' + n'a' + 0xdeadBEEF": "SELECT ? + ? + ?",
    'SELECT "it\'s" + \'say "no"\' + "a""b"': "SELECT ? + ? + ?",
    "SELECT a--1 FROM t # it's\nWHERE b": "SELECT `a` - ? FROM `t` WHERE `b`",
    "SELECT 'open and truncated": "SELECT ?",
    "SELECT 1 /* open": "SELECT ?",
    "SELECT `we'ird`, größe, $x": "SELECT `we'ird` , `größe` , `$x`",
    "SELECT a AS `\x1b]52;c;ZXZpbA==\x07`": "SELECT `a` AS ...",
    "": "",
}

#: Statements with secrets, which must never appear in a digest text, wherever the statement is truncated.
SECRETS = (
    f"SELECT '{WORD}'",
    f'SELECT "{WORD}"',
    f"SELECT 'a''{WORD}'",
    f'SELECT "a""{WORD}"',
    rf"SELECT 'a\'{WORD}'",
    rf'SELECT "a\"{WORD}"',
    rf"SELECT 'a\\', '{WORD}'",
    f"SELECT _latin1'{WORD}', _utf8mb4 '{WORD}'",
    f"SELECT N'{WORD}'",
    f"SELECT n'{WORD}', 'x'",
    f"SELECT x'{DIGITS}', X'{DIGITS}'",
    f"SELECT 0x{DIGITS}, 0X{DIGITS}",
    f"SELECT x'{DIGITS}{WORD}'",
    "SELECT b'10101010', B'10101010', 0b10101010, 0B10101010",
    f"SELECT {DIGITS}, -{DIGITS}, +{DIGITS}",
    f"SELECT {DIGITS}.{DIGITS}, .{DIGITS}, {DIGITS}.",
    f"SELECT {DIGITS}e1, 1e{DIGITS}, {DIGITS}.5E-{DIGITS}, {DIGITS}e+1",
    f"SELECT DATE '{DIGITS}', TIMESTAMP'{DIGITS}', {{d '{DIGITS}'}}",
    f"SELECT /* {WORD} '{WORD} */ 1",
    f"SELECT 1 -- {WORD} '{WORD}",
    f"SELECT 1 # {WORD} {DIGITS}\n + 2",
    f"SELECT /*! '{WORD}' */ {DIGITS}",
    f"SELECT /*!50000 '{WORD}' + */ {DIGITS}",
    f"SELECT /*!99999 {WORD} /* {WORD} */ {WORD} */ 1",
    f"SELECT /*!999999 {WORD} */ 1",
    f"SELECT /*M!100100 {WORD} */ 1",
    f"SELECT /*+ SET_VAR(a = '{WORD}') */ 1",
    f"SELECT /*+ SET_VAR(a = {WORD}) MAX_EXECUTION_TIME({DIGITS}) */ 1",
    f"SELECT /*+ {WORD} '{WORD}' {DIGITS} NO_HINT({WORD}, '{WORD}') */ 1",
    f"SELECT /*+ SET_VAR(a='{WORD} */ 1",
    f"SELECT /*+ JOIN_FIXED_ORDER x({WORD}) QB_NAME(a) ({WORD}) `{WORD}` */ 1",
    f"SELECT a /*+ {WORD} */ FROM t",
    f"CREATE USER u IDENTIFIED BY '{WORD}' REPLACE '{WORD}'",
    f"ALTER USER u IDENTIFIED WITH x AS '{WORD}' ATTRIBUTE '{WORD}'",
    f"GRANT ALL ON *.* TO u@'{WORD}' IDENTIFIED BY PASSWORD '{WORD}'",
    f"SET PASSWORD = PASSWORD('{WORD}')",
    f"CHANGE MASTER TO MASTER_PASSWORD='{WORD}', MASTER_USER=\"{WORD}\"",
    f"SET @{WORD} = '{WORD}', @'{WORD}' = 1, @a.{WORD} = 2",
    f"SELECT * FROM t WHERE a='x' AND b='{WORD}' AND c='",
    f"SELECT 'it''s', '{WORD}",
    f"SELECT '{WORD}' '{WORD}' \"{WORD}\"",
    f"SELECT $$ {WORD} ' $$, $tag$ {WORD} $ $$ $tag$",
    f"CREATE PROCEDURE p() BEGIN SET x = '{WORD}'; SET y = {DIGITS}; END",
    f"SELECT 1 AS '{WORD}'",
    "SELECT `a",
    f"SELECT `a, '{WORD}', {DIGITS}",
    f"SELECT * FROM t LIMIT {DIGITS}",
    f"SELECT a FROM t ORDER BY {DIGITS}",
    f"SELECT \0'{WORD}'",
    f"SELECT '\0{WORD}'",
    f"SELECT '{WORD}\\",
    f"SELECT {{ts '{WORD}'}}",
    # NO_BACKSLASH_ESCAPES, where 'C:\' is a complete literal
    rf"SELECT 'C:\', '{WORD}'",
    rf"SELECT 'C:\', ' {WORD} '",
    rf"SELECT 'C:\', '{WORD}', 'D:\', '{WORD}'",
    rf'SELECT "C:\", "{WORD}"',
    rf"SELECT 'C:\', {DIGITS}, '{WORD}', 'D:\'",
    rf"SELECT 'C:\', 'a', '{WORD}', '\', '{WORD}', {WORD.upper()!r}",
    rf"INSERT INTO t VALUES ('\', '{WORD}'), ('\', '{WORD}'), ('\', '{WORD}')",
    # ANSI_QUOTES, where "a\" is a complete identifier and the backslash in '\'' escapes the quote
    rf"""SELECT "a\" = 'x" {WORD} '""",
    rf"""SELECT "a\", 'it\'s {WORD} " {WORD}'""",
)


@pytest.mark.parametrize("statement", TEXTS)
def test_texts_are_the_servers(statement: str) -> None:
    for version in ((8, 0, 31), (9, 7, 0), ()):
        assert digest(statement.encode(), version=version).text == TEXTS[statement]


@pytest.mark.parametrize("statement", SECRETS)
def test_no_literal_survives_wherever_the_statement_is_cut(statement: str) -> None:
    whole = statement.encode()
    for end in range(len(whole) + 1):
        for context in CONTEXTS:
            assert_hidden(digest(whole[:end], **context).text)


@pytest.mark.parametrize("statement", AMBIGUOUS)
def test_text_ends_where_servers_disagree(statement: str) -> None:
    for context in CONTEXTS:
        truncated = statement.encode().replace("\ufffd".encode(), b"\xb0")
        assert SECRET not in digest(statement.encode(), **context).text
        assert SECRET not in digest(truncated, **context).text


@pytest.mark.parametrize("context", CONTEXTS)
def test_no_literal_survives_in_statements_from_random_pieces(context: dict[str, Any]) -> None:
    """Generate statements with the secret only inside literals or $$ bodies, for a random sql_mode."""
    chance = random.Random(21)  # noqa: S311
    for _ in range(20_000):
        statement = random_statement(chance)
        assert SECRET not in digest(statement.encode(), **context).text, statement


def assert_hidden(text: str) -> None:
    """Assert that not even the first three characters of a secret are in the text."""
    for secret in (WORD, DIGITS, "10101010"):
        assert secret[:3] not in text.lower(), text


def test_text_ends_at_an_escaped_quote_unless_the_mode_is_known() -> None:
    statement = rb"UPDATE t SET a = 'it\'s' WHERE b = 1"

    assert digest(statement, certain=True).text == "UPDATE `t` SET `a` = ? WHERE `b` = ?"
    assert digest(statement).text == "UPDATE `t` SET `a` = ? ..."


def test_backslashes_that_escape_no_quote_hide_nothing() -> None:
    assert digest(rb"SELECT a FROM t WHERE b = 'x\n' OR c = 'C:\\x'").text == (
        "SELECT `a` FROM `t` WHERE `b` = ? OR `c` = ?"
    )


def test_backticks_within_multi_byte_characters_hide_what_follows() -> None:
    statement = "SELECT 誠a, ".encode("gbk")[:-2] + b"\xd5`, 'hunter2', `"

    assert "hunter2" not in digest(statement).text


def test_text_ends_at_a_name_that_is_not_utf_8_unless_the_character_set_is_known() -> None:
    assert digest(b"SELECT \xe9\xff, a FROM t").text == "SELECT ..."
    assert digest(b"SELECT \xe9\xff, a FROM t", certain=True).text == "SELECT ? , `a` FROM `t`"


def test_ids_are_the_same_on_all_versions() -> None:
    statement = b"SELECT vector FROM t WHERE a = -1"
    old, new = digest(statement, version=(8, 0, 31)), digest(statement, version=(9, 7, 0))

    assert old.text == "SELECT `vector` FROM `t` WHERE `a` = - ?"
    assert new.text == "SELECT VECTOR FROM `t` WHERE `a` = ?"
    assert old.id == new.id
    assert len(new.id) == 32


def test_ids_ignore_literals_and_layout_but_not_names() -> None:
    one = digest(b"SELECT a FROM t WHERE b IN (1, 2)").id

    assert digest(b"select  a\nfrom t where b in ('x')").id == one
    assert digest(b"SELECT a FROM u WHERE b IN (1, 2)").id != one


def test_ids_do_not_change() -> None:
    """Fail if a change to the rules changes ids: users store ids, so docs/digests.md must document it."""
    assert digest(b"SELECT 1").id == "43d85c22c00119421a119ee1426381a1"


def test_texts_are_bounded() -> None:
    long = digest(b"SELECT " + b"sql_calc_found_rows " * 10_000)

    assert len(long.text) == MAX_CHARS
    assert long.text.endswith("...")
    assert len(digest(b"SELECT a FROM t", max_chars=10).text) == 10


@pytest.mark.parametrize("piece", ["'", "''", "$$", "$a", "/*", "`", "(?,", "((1,", "1e", "\\'", "a\ufffd"])
def test_long_statement_takes_less_than_a_second(piece: str) -> None:
    statement = piece * (4_000_000 // len(piece))
    began = time.process_time()

    without_literals(statement)
    is_unfinished(statement)

    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT 'a", True),
        ("SELECT 'a'", False),
        ("SELECT 'a\\'", True),
        ("SELECT 'a''", True),
        ("SELECT 'a'''", False),
        ('SELECT "', True),
        ("SELECT x'4", True),
        ("-- 'a", False),
        ("", False),
        ("AS $$ let x = 'a'", True),
        ("AS $$ let x = 'a' $$", False),
        ("AS $js$ $$", True),
        ("SELECT /* a", True),
        ("SELECT /* a */", False),
        ("SELECT /*! a", True),
        ("SELECT /*! 'a */", True),
        ("SELECT /*! a */", False),
        ("SELECT /*+ BKA(t)", True),
        ("SELECT /*+ QB_NAME(`a", True),
        ("SELECT /*+ BKA(t) */", False),
        ("/*!50000 ' */ ' */", True),  # complete only where the comment is executed
        ("SELECT `a", True),
        ("SELECT `a`", False),
        ("SELECT $x", False),
    ],
)
def test_unfinished_literals_and_comments_are_recognized(text: str, expected: bool) -> None:
    assert is_unfinished(text) is expected


def test_long_lists_are_folded_completely() -> None:
    assert digest(b"INSERT INTO t VALUES " + b"(1, 'x')," * 50_000 + b"(2, 'y')").text == (
        "INSERT INTO `t` VALUES (...) /* , ... */"
    )


def test_hints_of_mariadb_are_removed() -> None:
    """From 12.0 on, MariaDB reads a hint as one token up to the first ``*/``, whatever is in it."""
    statement = b"SELECT /*+ QB_NAME(`a') */ `b` FROM `t` WHERE `c` = 'x'"
    for version in ((11, 8, 2), (12, 0, 2)):
        found = digest(statement, flavour="mariadb", version=version, certain=True).text
        assert found == "SELECT `b` FROM `t` WHERE `c` = ?"


def test_mariadb_does_not_execute_comments_for_mysql_5_7_and_later() -> None:
    statement = b"SELECT /*!50600 a, */ /*!50700 b, */ 1"

    assert digest(statement, flavour="mariadb", version=(10, 11, 6)).text == "SELECT `a` , ?"
    assert digest(statement, version=(5, 6, 24)).text == "SELECT `a` , ?"
    assert digest(statement, version=(8, 0, 31)).text == "SELECT `a` , `b` , ?"


def test_equal_digests_are_one_object_and_the_cache_is_bounded() -> None:
    cache = SharedDigests(most=3)
    first = cache.digest(("SELECT ?", "SELECT ?"))
    assert first == digest(b"SELECT 'x'")
    assert cache.digest(("SELECT ?", "SELECT ?")) is first
    sizes = []
    for number in range(10):
        cache.digest((f"SELECT `a{number}`", f"SELECT `a{number}`"))
        sizes.append(len(cache))
    assert max(sizes) == 3
