"""Compute the facts about a replica's threads and semi-synchronous replication."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from innoscope.diagnose import replication_threads
from innoscope.diagnose.answers import number, rows, variable
from innoscope.diagnose.replica_applier import appliers
from innoscope.diagnose.unavailable import Unknown

if TYPE_CHECKING:
    from innoscope.diagnose.evidence import Evidence, FactFunctions

#: State of a commit waiting for a replica: "slave" in MariaDB and in MySQL before 8.0.26, later "replica".
_SEMISYNC: Final = re.compile(r"^Waiting for semi-sync ACK from (slave|replica)")


def _applier_behind_seconds(evidence: Evidence) -> float:
    """Return the replica's lag behind its source in seconds, not counting its configured delay."""
    try:
        replicas = rows(evidence, "replication")
    except Unknown:  # no privilege; MySQL's process list shows the age of the event being applied
        rows(evidence, "processes")
        return max((float(one.seconds) for one in appliers(evidence)), default=0.0)
    return max((number(row, "seconds") - number(row, "delay") for row in replicas), default=0.0)


def _semisync_wait_seconds(evidence: Evidence) -> float:
    """Return the longest time in seconds that a commit has been waiting for a replica's acknowledgment."""
    rows(evidence, "processes")
    return max((float(one.seconds) for one in evidence.statements if _SEMISYNC.match(one.state)), default=0.0)


def _semisync_timeout_seconds(evidence: Evidence) -> float:
    try:
        return variable(evidence, "rpl_semi_sync_source_timeout") / 1000
    except Unknown:
        return variable(evidence, "rpl_semi_sync_master_timeout") / 1000


def _connected_replicas(evidence: Evidence) -> float:
    """Return the number of replicas that read this server's binary log, with or without acknowledging it."""
    rows(evidence, "processes")
    return float(sum(one.command.startswith("Binlog Dump") for one in evidence.statements))


FACTS: Final[FactFunctions] = {
    "applier_behind_seconds": _applier_behind_seconds,
    "semisync_wait_seconds": _semisync_wait_seconds,
    "semisync_timeout_seconds": _semisync_timeout_seconds,
    "connected_replicas": _connected_replicas,
    "replication_failed": replication_threads.failed,
    "replication_off": replication_threads.switched_off,
}
