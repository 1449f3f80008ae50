"""What a server says of itself, without the users' data: literals, rows and secrets go, names stay.

Users and hosts of connections, and names of schemas, tables, columns and files are kept: without them nobody
could tell who blocks whom.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from innoscope.target.fingerprint import fingerprint, unfinished

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: What stands in the place of what was taken out.
WITHHELD: Final = "[withheld]"
_ROW: Final = " [row withheld]"

#: Sections of SHOW ENGINE INNODB STATUS with texts of users, which follow one another in all versions; the
#: last ``FILE I/O`` ends them, since none comes behind it. So a text that forges a heading does not lead out.
_USERS_SECTIONS: Final = ("LATEST FOREIGN KEY ERROR", "LATEST DETECTED DEADLOCK", "TRANSACTIONS")
_NEXT_SECTION: Final = "FILE I/O"

#: Bytes of a statement that are printed: lock_print_info_all_transactions of 5.5 and 5.6 asks for so many,
#: and innobase_mysql_print_thd of all versions has a buffer for it and the line before it.
_PRINTED: Final = 600
_BUFFER: Final = 1023
#: A character may have been cut.
_LESS: Final = 4

_NAME: Final = r"(?:`(?:[^`]|``)*`|[\w$]+)"
_NAMES: Final = rf"{_NAME}(?:, {_NAME})*"
_TABLE: Final = rf"{_NAME}(?:\.{_NAME})?(?: /\* [\w`#$ ,]* \*/)?"
_ID: Final = r"(?:\(0x[0-9a-f]+\)|[0-9A-F]+(?: [0-9A-F]+)?)"
_RECORD: Final = r"PHYSICAL RECORD: n_fields \d+; [\w -]+; info bits \d+"

#: Lines of InnoDB itself, each wholly. Any other line may be a text of a user.
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
#: Lines that statements may have as well.
_ALSO_OURS: Final = frozenset({"", ","})


def status(text: str) -> str:
    """SHOW ENGINE INNODB STATUS without values: statements as fingerprints, rows withheld."""
    lines = text.split("\n")
    begin = min((at for name in _USERS_SECTIONS for at in _headings(lines, name)), default=0)
    end = max(_headings(lines, _NEXT_SECTION), default=len(lines))
    return "\n".join([*lines[:begin], *_joined(_reduced(lines[begin:end])), *lines[end:]])


def _headings(lines: Sequence[str], name: str) -> Iterator[int]:
    """Where a section begins: the line of dashes before its name, which has another behind it."""
    for at in range(1, len(lines) - 1):
        if lines[at] == name and lines[at - 1].startswith("---") and lines[at + 1].startswith("---"):
            yield at - 1


def _reduced(lines: Sequence[str]) -> Iterator[str]:
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
                    yield fingerprint("\n".join(lines[at : at + count]))
                at += count


def _statement(lines: Sequence[str], begin: int, room: int) -> int:
    """How many lines from ``begin`` are a statement: to a line of InnoDB's that is not within a literal."""
    text, at = "", begin
    while at < len(lines):
        if _OURS.fullmatch(lines[at]) and (_cut_off(text, room) or not unfinished(text)):
            break
        text += lines[at] + "\n"
        at += 1
    return at - begin if text.strip() else 0


def _cut_off(text: str, room: int) -> bool:
    """Whether it ends where InnoDB leaves off, so that a quote may stay open."""
    size = len(text.encode()) - 1
    return _PRINTED - _LESS <= size <= _PRINTED or size >= room - _LESS


def _joined(lines: Iterator[str]) -> Iterator[str]:
    """Lines that were taken out one after the other as one."""
    before = None
    for line in lines:
        if line != before or line not in (WITHHELD, _ROW):
            yield line
        before = line


#: Variables that hold secrets, or statements that may.
_SECRET_NAME: Final = re.compile(
    r"pass|pwd|secret|token|credential|auth|(?<!ssl)_key(?:_|$)|init_(?:connect|slave|replica)"
    r"|^wsrep_(?:provider_options|notify_cmd|cluster_address)$"
)
_SECRET_VALUE: Final = re.compile(r"(?i)(?:password|passwd|pwd|secret|token)\s*=|://[^/\s]*:[^/\s]*@")
#: Values that are none, and names of which even numbers may be.
_SWITCH: Final = frozenset({"", "ON", "OFF", "YES", "NO"})
_NUMBER: Final = re.compile(r"-?\d+(?:\.\d+)?")
_SECRET_NUMBER: Final = re.compile(r"(?:password|pwd|secret|token|auth|(?:secret|access|private)_key)$")
_LONGEST: Final = 4096


def variables(found: Mapping[str, str]) -> dict[str, str]:
    """Server variables; those whose name or value speaks of a secret say only that there is one."""
    return {name: _told(name, value) for name, value in sorted(found.items())}


def _told(name: str, value: str) -> str:
    number = _NUMBER.fullmatch(value) and not _SECRET_NUMBER.search(name)
    secret = _SECRET_NAME.search(name.lower()) or _SECRET_VALUE.search(value)
    return WITHHELD if secret and not number and value not in _SWITCH else value[:_LONGEST]
