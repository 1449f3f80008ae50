"""Find the replication threads that are stopped, and the errors that stopped them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from innoscope.diagnose.answers import number, rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from innoscope.diagnose.evidence import Evidence

#: States of running threads, in SHOW SLAVE STATUS and in performance_schema.
_RUNNING: Final = frozenset({"Yes", "ON"})
#: States of stopped threads. A receiver that is connecting has another state.
_OFF: Final = frozenset({"No", "OFF"})
#: Prefix of the channels of group replication, whose threads run only in a group or while a member joins.
_GROUP: Final = "group_replication_"
_MAX_ERRORS: Final = 4


@dataclass(frozen=True, slots=True)
class ReplicationThread:
    """One thread of a replica: its ``role`` (receiver or applier), state and last error."""

    channel: str
    role: str
    state: str
    error: float
    message: str

    @property
    def failed(self) -> bool:
        """Return whether the thread is not running and has an error.

        This includes a receiver that is trying to reconnect.
        """
        return self.error != 0 and self.state not in _RUNNING


def threads(evidence: Evidence) -> tuple[ReplicationThread, ...]:
    """Return the replication threads that the server lists. Raise Unknown if there is no query result."""
    if "replication_threads" in evidence.answers:
        return tuple(
            _thread(row, row["role"], "running", "error", f"{row['role']}_message")
            for row in evidence.answers["replication_threads"]
        )
    found = []
    for row in rows(evidence, "replication"):
        found.append(_thread(row, "applier", "running", "error", "applier_message"))
        if "receiving" in row:
            found.append(_thread(row, "receiver", "receiving", "receiver_error", "receiver_message"))
    return tuple(found)


def _thread(row: Mapping[str, str], role: str, state: str, error: str, message: str) -> ReplicationThread:
    return ReplicationThread(
        row.get("channel", ""), role, row[state], number(row, error), row.get(message, "")
    )


def failed(evidence: Evidence) -> float:
    """Return the number of replication threads that are not running and have an error."""
    return float(sum(one.failed for one in threads(evidence)))


def switched_off(evidence: Evidence) -> float:
    """Return the number of stopped threads whose channel has no error: an operator stopped them.

    Threads of group replication are omitted.
    """
    every = threads(evidence)
    with_error = {one.channel for one in every if one.error}
    return float(
        sum(
            one.state in _OFF and one.channel not in with_error and not one.channel.startswith(_GROUP)
            for one in every
        )
    )


def errors(evidence: Evidence) -> list[str]:
    """Return the errors, such as ``applier, error 1062: Could not execute Write_rows event on table a.b``."""
    return list(dict.fromkeys(_descriptions(evidence)))[:_MAX_ERRORS]


def _descriptions(evidence: Evidence) -> Iterator[str]:
    for one in threads(evidence):
        if one.failed:
            channel = f" of channel {one.channel}" if one.channel else ""
            message = f": {one.message}" if one.message else ""
            yield f"{one.role}{channel}, error {one.error:.0f}{message}"
