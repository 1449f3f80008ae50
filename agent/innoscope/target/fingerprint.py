"""Statement text without its literals, for servers that give no digest of their own."""

from __future__ import annotations

import re
from collections import deque

_LIMIT = 2048  # characters of the result

_TOKEN = re.compile(
    r"""
      (?P<comment> /\*.*?(?:\*/|\Z) | \#[^\n]* | --(?=\s|\Z)[^\n]* )
    | (?P<string>  (?:\b[nNxXbB]|\b_[A-Za-z]\w*\s*)?
                   (?: '(?:[^'\\]|\\.|'')*(?:'|\\?\Z) | "(?:[^"\\]|\\.|"")*(?:"|\\?\Z) ) )
    | (?P<quoted>  `(?:[^`]|``)*(?:`|\Z) )
    | (?P<word>    [^\W\d][\w$]* | @+[\w$.]* )
    | (?P<number>  0[xX][0-9a-fA-F]+ | 0b[01]+ | (?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)? )
    | (?P<space>   \s+ )
    | (?P<other>   . )
    """,
    re.VERBOSE | re.DOTALL,
)
_CLOSED = re.compile(
    r"""(?:[^'"`/]*)(?:'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`(?:[^`]|``)*`|/\*.*?\*/)""", re.DOTALL
)
_ESCAPED_QUOTE = re.compile(r"\\['\"]")
_LIST = re.compile(r"\((?:\s*[-+]?\?\s*,)+\s*[-+]?\?\s*\)")
_ROWS = re.compile(r"(\(\?[^()]*\)|\(…\))(?:\s*,\s*(?:\(\?[^()]*\)|\(…\)))+")


def fingerprint(statement: str) -> str:
    """``SELECT * FROM t WHERE a='x' -- y`` → ``SELECT * FROM t WHERE a=?``.

    Strings, numbers and comments go; lists of values become one ``(…)``; identifiers stay. After an escaped
    quote the rest is cut off with ``…``: with NO_BACKSLASH_ESCAPES it would read differently.
    """
    parts: list[str] = []
    for match in _TOKEN.finditer(statement):
        text = match.group()
        if match["string"] is not None:
            parts.append("?")
            if _ESCAPED_QUOTE.search(text):
                parts.append(" …")
                break
        elif match["number"] is not None:
            parts.append("?")
        elif match["comment"] is not None or match["space"] is not None:
            parts.append(" ")
        else:
            parts.append(text)
    plain = " ".join("".join(parts).split())
    return _ROWS.sub(r"\1", _LIST.sub("(…)", plain))[:_LIMIT]


def unfinished(statement: str) -> bool:
    """Whether the text ends within a string, a quoted name or a comment."""
    ends = deque(_TOKEN.finditer(statement), maxlen=1)
    if not ends or not (ends[0]["string"] or ends[0]["quoted"] or ends[0].group().startswith("/*")):
        return False
    return _CLOSED.fullmatch(ends[0].group()) is None
