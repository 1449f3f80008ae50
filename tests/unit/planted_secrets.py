"""Statements with a secret in their literals, for tests of the code that removes literals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import random

SECRET: Final = "hunter2"  # noqa: S105
#: Statements whose literals servers parse differently, depending on version, sql_mode or character set.
AMBIGUOUS: Final = (
    # function bodies of MySQL 9, with and without a tag; on older servers, $$ is part of a name
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
)


def random_statement(chance: random.Random) -> str:
    """Return a statement made of random pieces, sometimes truncated, for a random ``sql_mode``."""
    escapes = chance.random() < 0.5
    pieces = [_piece(chance, escapes) for _ in range(chance.randint(1, 9))]
    return "".join(pieces)[: chance.choice((None, 40, 80))]


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
    """Return an executable comment with two literals, each of which may contain ``*/``."""
    begin = chance.choice(("/*!", "/*!50000 ", "/*M!100000 ", "/*!99999 /* a */ "))
    return f"{begin}{_literal(chance, escapes)} {chance.choice(('', '# */ '))}\n{_literal(chance, escapes)}*/"


def _inside(quote: str, escapes: bool) -> tuple[str, ...]:
    """Return the pieces that a literal in ``quote`` quotes may contain, with or without backslash escapes."""
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
