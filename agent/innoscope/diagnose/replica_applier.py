"""Describe a replica's applier threads: their current statements, and whether they are waiting for locks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from innoscope.diagnose.evidence import ConnectionActivity, Evidence

#: User name of a replica's own threads in the process list.
_APPLIER: Final = "system user"
#: States of applier threads that are idle, or waiting for the source or for another applier thread.
_AT_REST: Final = re.compile(
    r"^$|^(Waiting for (master|source|the slave|the next|an event|slave|replica|work)|Connecting|Queueing|"
    r"Reconnecting|Checking|Registering|Requesting|Slave has|Replica has|Has read|Reading event|"
    r"wsrep aborter|wsrep applier (idle|committed))",
    re.IGNORECASE,
)
#: Maximum number of applier threads to show.
_MAX_APPLIERS: Final = 3


def appliers(evidence: Evidence) -> tuple[ConnectionActivity, ...]:
    """Return the statements of a replica's applier threads, excluding idle threads (_AT_REST)."""
    return tuple(
        one for one in evidence.statements if one.user == _APPLIER and not _AT_REST.search(one.state)
    )


def running(evidence: Evidence) -> list[str]:
    """Return the appliers' descriptions, such as ``applier, connection 5, Updating for 31 s: UPDATE t …``."""
    return [_description(one) for one in appliers(evidence)[:_MAX_APPLIERS]]


def waits_for_rows(evidence: Evidence) -> bool:
    """Return whether an applier's transaction is waiting for a row lock."""
    connections = {str(one.connection) for one in appliers(evidence)}
    transactions = evidence.answers.get("transactions", ())
    return any(row["state"] == "LOCK WAIT" and row["connection"] in connections for row in transactions)


def waits_for_table(evidence: Evidence) -> bool:
    """Return whether an applier is waiting for a metadata lock."""
    return any("metadata lock" in one.state for one in appliers(evidence))


def _description(one: ConnectionActivity) -> str:
    text = f": {one.text}" if one.text else ""
    return f"applier, connection {one.connection}, {one.state or one.command} for {one.seconds:,} s{text}"
