"""Statements of many kinds, written out or generated from parts, to compare our digests with the server's.

Tables need not exist: a server computes the digest before it opens them.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Final

#: Literals in all their forms.
LITERALS: Final = (
    "1", "-1", "+1", "- - 1", "1.5", ".5", "1.", "1e3", "-1.5e-10", "0x1F", "x'1F'", "X'1f'", "b'01'", "0b11",
    "'text'", '"text"', "''", "'it''s'", r"'it\'s'", r"'C:\\'", "'a' 'b'", "N'text'", "n'text'",
    "_utf8mb4'text'", "_latin1 'text'", "_binary x'1F'", "NULL", "TRUE", "FALSE", "DATE '2026-01-01'",
    "TIMESTAMP '2026-01-01 00:00:00'", "TIME'10:00'", "9223372036854775808", "123456789012345678901234567890",
    "'-- no comment'", "'/* no comment */'", "'# none'", "'日本'", "'`'",
)  # fmt: skip
#: Statements with a placeholder for a literal.
AROUND: Final = (
    "SELECT {}",
    "SELECT {}, {}",
    "SELECT a FROM t WHERE a = {}",
    "SELECT a FROM t WHERE a IN ({})",
    "INSERT INTO t VALUES ({})",
    "INSERT INTO t VALUES ({}, {}), ({}, {})",
)
#: Statements of many kinds, one on each line. The second part needs MySQL 8.0.
_FILE: Final = Path(__file__).with_name("statement_mix.sql").read_text(encoding="utf-8")
STATEMENTS, SINCE_8 = (tuple(part.splitlines()) for part in _FILE.split("\n\n"))
SEVERAL_LINES: Final = (
    "SELECT\n*\tFROM\r\nt",
    "SELECT a -- comment\nFROM t",
    "SELECT a # comment\nFROM t",
)


def statements() -> list[str]:
    """Return the statements for all versions. A version may reject some of them with a syntax error."""
    generated = [around.replace("{}", literal) for around, literal in product(AROUND, LITERALS)]
    columns = ", ".join(f"column_{number}" for number in range(200))
    keywords = " OR ".join(["NOT a IS NULL"] * 300)
    return [
        *STATEMENTS,
        *SEVERAL_LINES,
        *generated,
        # longer than max_digest_length
        f"SELECT {columns} FROM t",
        f"SELECT a FROM t WHERE {keywords}",
        f"INSERT INTO t ({columns}) VALUES (1)",
        "INSERT INTO t VALUES " + ", ".join(["(1, 'x')"] * 1_000),
        f"SELECT {'a' * 64}, b AS `{'c' * 65}` FROM t",
    ]
