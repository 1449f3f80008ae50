"""Remove user data from a server's status and variables: literals, rows and secrets.

The users and hosts of connections, and the names of schemas, tables, columns and files, are kept, because
they show which connection blocks which.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from innoscope.target.digests import is_unfinished, without_literals

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: Replacement for removed text.
WITHHELD: Final = "[withheld]"
_ROW: Final = " [row withheld]"

#: Sections of SHOW ENGINE INNODB STATUS that contain users' statements. They are consecutive in all versions
#: and end at the last ``FILE I/O`` heading, so a statement with a forged heading is still redacted.
_USERS_SECTIONS: Final = ("LATEST FOREIGN KEY ERROR", "LATEST DETECTED DEADLOCK", "TRANSACTIONS")
_NEXT_SECTION: Final = "FILE I/O"

#: Maximum number of bytes that lock_print_info_all_transactions prints of a statement in 5.5 and 5.6.
_PRINTED: Final = 600
#: Size of the buffer of innobase_mysql_print_thd, in all versions, for a statement and the line before it.
_BUFFER: Final = 1023
#: A truncated statement may be this many bytes below the limit if a multi-byte character was cut.
_CUT_BYTES: Final = 4

_NAME: Final = r"(?:`(?:[^`]|``)*`|[\w$]+)"
_NAMES: Final = rf"{_NAME}(?:, {_NAME})*"
_TABLE: Final = rf"{_NAME}(?:\.{_NAME})?(?: /\* [\w`#$ ,]* \*/)?"
_ID: Final = r"(?:\(0x[0-9a-f]+\)|[0-9A-F]+(?: [0-9A-F]+)?)"
_RECORD: Final = r"PHYSICAL RECORD: n_fields \d+; [\w -]+; info bits \d+"

#: Whole lines that InnoDB itself prints. Any other line may be part of a user's statement.
_OURS: Final = re.compile(
    "|".join(
        (
            r"-{3,}",
            *_USERS_SECTIONS,
            r"[\d-]{6,10} +[\d:]{7,8}(?: (?:0x)?[0-9a-f]+)?(?: Transaction:)?",
            r"\*\*\* (?:\(\d+\) )?(?:TRANSACTION|HOLDS THE LOCK\(S\)|CONFLICTING WITH):",
            r"\*\*\* (?:\(\d+\) )?WAITING FOR THIS LOCK TO BE GRANTED:",
            r"\*\*\* WE ROLL BACK TRANSACTION \(\d+\)",
            r"TOO DEEP OR LONG SEARCH IN THE LOCK TABLE WAITS-FOR GRAPH, [A-Z ]+",
            r"TOO MANY LOCKS PRINTED FOR THIS TRX: SUPPRESSING FURTHER PRINTS",
            rf"(?:---)?TRANSACTION {_ID}, (?:not started|ACTIVE)[\w ,()-]{{0,160}}",
            r"mysql tables in use \d+, locked \d+",
            r"(?:LOCK WAIT |ROLLING BACK |COMMITTING )?\d+ lock struct\(s\), heap size \d+[a-z\d ,()]*",
            r"(?:MySQL|MariaDB) thread id \d+, (?:OS thread handle \w+, )?query id \d+.*",
            rf"Trx read view will not see trx with id >= {_ID}, sees < {_ID}",
            r"------- TRX HAS BEEN WAITING \d+ \w+ FOR THIS LOCK TO BE GRANTED:",
            rf"RECORD LOCKS space id \d+ page no \d+ n bits \d+ index {_NAME} of table {_TABLE} trx id {_ID}"
            r" lock[_ ]mode [\w, -]+",
            rf"TABLE LOCK table {_TABLE} trx id {_ID} lock mode [\w-]+(?: waiting)?",
            rf"Record lock, heap no \d+(?: {_RECORD})?",
            rf"{_RECORD}|DATA TUPLE: \d+ fields;",
            rf"Trx id counter {_ID}|History list length \d+|LIST OF TRANSACTIONS FOR EACH SESSION:",
            rf"Purge done for trx's n:o < {_ID} undo n:o < {_ID}(?: state: [\w ]+)?",
            r"Total number of lock structs in row lock hash table \d+",
            rf"Foreign key constraint fails for table {_TABLE}:",
            rf"  CONSTRAINT {_NAME} FOREIGN KEY \({_NAMES}\) REFERENCES {_TABLE} \({_NAMES}\)[A-Z ]*"
            rf"(?: in parent table, in index {_NAME} tuple:)?",
            rf"Trying to [a-z ,]+(?: {_TABLE})?,? in index {_NAME} tuple:",
            rf"But in (?:parent|child) table {_TABLE}, in index {_NAME},",
            r"(?:the closest match we can find is|there is a) record:",
            r"\.\.\. truncated\.\.\.",
        )
    )
)
_THREAD: Final = re.compile(r"(?:MySQL|MariaDB) thread id \d+, ")
_ROW_LINE: Final = re.compile(r" *\d+: .*")
#: Lines that InnoDB prints but that may also be part of a user's statement.
_ALSO_OURS: Final = frozenset({"", ","})


def status(text: str) -> str:
    """Redact SHOW ENGINE INNODB STATUS: remove statements' literals, and withhold rows and unknown lines."""
    lines = text.split("\n")
    begin = min((at for name in _USERS_SECTIONS for at in _headings(lines, name)), default=0)
    end = max(_headings(lines, _NEXT_SECTION), default=len(lines))
    return "\n".join([*lines[:begin], *_merged(_redacted(lines[begin:end])), *lines[end:]])


def _headings(lines: Sequence[str], name: str) -> Iterator[int]:
    """Yield the index of each line of dashes that starts a section with this name."""
    for at in range(1, len(lines) - 1):
        if lines[at] == name and lines[at - 1].startswith("---") and lines[at + 1].startswith("---"):
            yield at - 1


def _redacted(lines: Sequence[str]) -> Iterator[str]:
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if _ROW_LINE.fullmatch(line):
            yield _ROW
        elif line not in _ALSO_OURS and not _OURS.fullmatch(line):
            yield WITHHELD
        else:
            yield line
            if _THREAD.match(line):
                count = _statement(lines, at, _BUFFER - len(line.encode()) - 1)
                if count:
                    yield without_literals("\n".join(lines[at : at + count]))
                at += count


def _statement(lines: Sequence[str], begin: int, room: int) -> int:
    """Return the number of lines from ``begin`` that belong to a statement.

    The statement ends before the first line that InnoDB itself printed, unless that line is in a literal.
    """
    text, at = "", begin
    while at < len(lines):
        if _OURS.fullmatch(lines[at]) and (_cut_off(text, room) or not is_unfinished(text)):
            break
        text += lines[at] + "\n"
        at += 1
    return at - begin if text.strip() else 0


def _cut_off(text: str, room: int) -> bool:
    """Return whether InnoDB may have truncated the text, judging by its length.

    A truncated text may leave a quote open.
    """
    size = len(text.encode()) - 1
    return _PRINTED - _CUT_BYTES <= size <= _PRINTED or size >= room - _CUT_BYTES


def _merged(lines: Iterator[str]) -> Iterator[str]:
    """Merge consecutive replacement lines into one."""
    before = None
    for line in lines:
        if line != before or line not in (WITHHELD, _ROW):
            yield line
        before = line


#: Names of variables whose values are secrets, or are statements that may contain secrets.
_SECRET_NAME: Final = re.compile(
    r"pass|pwd|secret|token|credential|auth|(?<!ssl)_key(?:_|$)|init_(?:connect|slave|replica)"
    r"|^wsrep_(?:provider_options|notify_cmd|cluster_address)$"
)
_SECRET_VALUE: Final = re.compile(r"(?i)(?:password|passwd|pwd|secret|token)\s*=|://[^/\s]*:[^/\s]*@")
#: Values of switches, which are never secrets.
_SWITCH: Final = frozenset({"", "ON", "OFF", "YES", "NO"})
_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?")
#: Names of variables whose values are secrets even if they are numbers.
_SECRET_NUMBER: Final = re.compile(r"(?:password|pwd|secret|token|auth|(?:secret|access|private)_key)$")
_LONGEST: Final = 4096


def variables(found: Mapping[str, str]) -> dict[str, str]:
    """Redact server variables whose name or value suggests a secret, and truncate long values."""
    return {name: _redacted_value(name, value) for name, value in sorted(found.items())}


def _redacted_value(name: str, value: str) -> str:
    number = _NUMBER.fullmatch(value) and not _SECRET_NUMBER.search(name)
    secret = _SECRET_NAME.search(name.lower()) or _SECRET_VALUE.search(value)
    return WITHHELD if secret and not number and value not in _SWITCH else value[:_LONGEST]
