"""Reduce the error messages of replication threads to their constant parts.

An applier's message contains row values and whole statements. These are quoted, but quotes inside a value are
not escaped, so it is impossible to tell where a value ends. Therefore only the text before the first quote or
semicolon is kept, along with the names of tables, events and storage engine errors.
"""

from __future__ import annotations

import re
from typing import Final

from innoscope.common import sanitize

#: Maximum length of a message in characters. The server's own limit is 1024 (MAX_SLAVE_ERRMSG,
#: rpl_reporting.h).
_LIMIT: Final = 300
#: The end of the constant text. The semicolon is followed by the message of the error itself, which is free
#: text if a trigger raised it with SIGNAL.
_END: Final = re.compile(r"""['"`;]""")
#: Rows_log_event::do_apply_event: "Could not execute Write_rows event on table shop.stock; …"
_EVENT: Final = re.compile(r"\b(?:Write|Update|Delete)_rows(?:_v1)? event on table [\w$]{1,64}\.[\w$]{1,64}")
_HANDLER: Final = re.compile(r"\bHA_ERR_[A-Z_]{1,40}\b")


def of_applier(message: str) -> str:
    """Return the message without values and statements.

    Keep the text before the first quote or semicolon, the event and its table, and the name of the storage
    engine's error.
    """
    start = _END.split(message, maxsplit=1)[0]
    parts = [start]
    for pattern in (_EVENT, _HANDLER):
        found = pattern.search(message, len(start)) or pattern.search(message)
        if found is not None and found[0] not in start:
            parts.append(found[0])
    return sanitize.words(" … ".join(part.strip() for part in parts), _LIMIT)


def of_receiver(message: str) -> str:
    """Return the sanitized message. A receiver does not parse events, so its message contains no values."""
    return sanitize.words(message, _LIMIT)
