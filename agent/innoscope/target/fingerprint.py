"""Remove the literals from statements, for servers that do not provide a digest.

The end of a literal may depend on the server's version, the sql_mode and the client's character set, which
are unknown here. Where the end is ambiguous, the text is cut off with ``…``, because a literal could follow.
"""

from __future__ import annotations

import re
from collections import deque

from innoscope.common import sanitize

_LIMIT = 2048  # maximum length of the result in characters
_LONGEST = 65_536  # characters to read; a literal that is cut off here is removed like any other

#: Identifiers may contain any non-ASCII character. An identifier that starts with a digit counts as a number.
_TOKEN = re.compile(
    r"""
      (?P<comment> /\*.*?(?:\*/|\Z) | \#[^\n]* | --(?=[\x00-\x20\x7f]|\Z)[^\n]* )
    | (?P<unclear> --(?=[^\x00-\x7f]) | \b[qQ](?=['"]) | \ufffd )
    | (?P<string>  (?:\b[nNxXbB]|\b_[A-Za-z]\w*\s*)?
                   (?: '(?:[^'\\]|\\.|'')*(?:'|\\?\Z) | "(?:[^"\\]|\\.|"")*(?:"|\\?\Z) ) )
    | (?P<quoted>  `(?:[^`]|``)*(?:`|\Z) )
    | (?P<dollar>  (?P<tag>\$(?:\w|[^\x00-\x7f])*\$).*?(?:(?P=tag)|\Z) )
    | (?P<word>    [^\W\d][\w$]* | @+[\w$.]* | \$[\w$]* )
    | (?P<number>  (?:\d[\w$]*\.?|\.\d)[\w$]*(?:(?<=[eE])[-+]\d[\w$]*)? )
    | (?P<space>   \s+ )
    | (?P<other>   . )
    """,
    re.VERBOSE | re.DOTALL,
)
_CLOSED = re.compile(
    r"""(?:[^'"`/$]*)(?:'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`(?:[^`]|``)*`|/\*.*?\*/"""
    r"""|(?P<tag>\$[^$]*\$).*?(?P=tag))""",
    re.DOTALL,
)
_ESCAPED_QUOTE = re.compile(r"\\['\"]")
#: A comment that some servers execute (``/*!``, ``/*M!``, hints) and in which a quote or comment may start.
_RUN = re.compile(r"""/\*(?:M?!|\+).*?(?:['"`$\#]|--|/\*)""", re.DOTALL)
_LIST = re.compile(r"\((?:\s*[-+]?\?\s*,)+\s*[-+]?\?\s*\)")
_ROWS = re.compile(r"(\(\?[^()]*\)|\(…\))(?:\s*,\s*(?:\(\?[^()]*\)|\(…\)))+")


def fingerprint(statement: str) -> str:
    """Remove literals: ``SELECT * FROM t WHERE a='x' -- y`` → ``SELECT * FROM t WHERE a=?``.

    Strings, numbers and comments are removed, and lists of values become one ``(…)``.
    Identifiers are kept, but sanitized.
    """
    parts: list[str] = []
    for match in _TOKEN.finditer(statement[:_LONGEST]):
        text = match.group()
        if match["string"] is not None or match["number"] is not None or match["dollar"] is not None:
            parts.append("?")
        elif match["comment"] is not None or match["space"] is not None:
            parts.append(" ")
        elif match["unclear"] is None and not _open_name(match):
            parts.append(text)
        if _unclear(match):
            parts.append(" …")
            break
    plain = " ".join("".join(parts).split())
    return sanitize.line(_ROWS.sub(r"\1", _LIST.sub("(…)", plain))[:_LIMIT])


def _unclear(match: re.Match[str]) -> bool:
    """Return whether servers disagree on where this token ends.

    With NO_BACKSLASH_ESCAPES, an escaped quote ends a string. Before MySQL 9, ``$$`` was a name. In an
    executed comment, quotes and nested comments are tokens. A truncated character (U+FFFD) may hide a
    backtick. A quoted name without its closing quote may contain a literal.
    """
    if match["dollar"] is not None or match["unclear"] is not None:
        return True
    if match["string"] is not None:
        return _ESCAPED_QUOTE.search(match.group()) is not None
    return _RUN.match(match.group()) is not None if match["comment"] is not None else _open_name(match)


def _open_name(match: re.Match[str]) -> bool:
    """Return whether the token is a quoted name without its closing quote, or with a truncated character."""
    text = match.group()
    return match["quoted"] is not None and ("\ufffd" in text or _CLOSED.fullmatch(text) is None)


def unfinished(statement: str) -> bool:
    """Return whether the text ends within a string, a quoted name or a comment."""
    ends = deque(_TOKEN.finditer(statement), maxlen=1)
    if not ends:
        return False
    last = ends[0]
    if not (last["string"] or last["quoted"] or last["dollar"] or last.group().startswith("/*")):
        return False
    return _CLOSED.fullmatch(last.group()) is None
