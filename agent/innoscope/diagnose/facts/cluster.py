"""Compute the facts about Galera clusters and Group Replication."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from innoscope._native import Patterns
from innoscope.diagnose.answers import snapshots
from innoscope.diagnose.unavailable import Unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from innoscope.diagnose.evidence import ConnectionActivity, Evidence, FactFunctions
    from innoscope.sampling.snapshot_history import ObservedStack

#: MariaDB functions on the stack of a thread that is executing DDL for a client or as a Galera applier.
_DDL: Final = (
    "mysql_alter_table", "mysql_recreate_table", "mysql_rm_table", "mysql_rename_tables",
    "Sql_cmd_truncate_table::*", "Wsrep_high_priority_service::apply_toi",
)  # fmt: skip
#: CREATE TABLE is omitted because it is fast. CREATE TABLE … SELECT replicates like any other transaction.
_DDL_TEXT: Final = re.compile(
    r"\s*(ALTER|OPTIMIZE|RENAME|TRUNCATE|DROP(?! TEMPORARY)|CREATE( UNIQUE| FULLTEXT| SPATIAL)? INDEX)\b",
    re.IGNORECASE,
)
#: Wait classes of DDL that is not executing yet.
_NOT_EXECUTING: Final = frozenset({"galera_wait", "metadata_lock"})

#: Function in which Group Replication delays a member that exceeds its quota (flow_control_module, MySQL 5.7
#: to 9.x).
_THROTTLED: Final = "Flow_control_module::do_wait"

_RECEIVED: Final = "galera_flow_control_received"
_SENT: Final = "galera_flow_control_sent"
_QUEUE: Final = "galera_receive_queue"
_COMMITS: Final = "galera_commits"
_CONFLICTS: Final = ("galera_certification_failures", "galera_brute_force_aborts")


def _own_pauses_ratio(evidence: Evidence) -> float:
    """Return the share of the cluster's pauses that this node requested.

    A node counts the requests that it receives from all nodes, including its own. If one pause lasts for the
    whole observation, no request is counted. In that case, the node whose receive queue is never empty
    requested the pause.
    """
    received, sent = _grown(evidence, _RECEIVED), _grown(evidence, _SENT)
    if received:
        return min(1.0, sent / received)
    queue = evidence.gauge(_QUEUE)
    return float(bool(queue) and min(queue) >= 1)


def _conflict_rate(evidence: Evidence) -> float:
    """Return the transactions per second that failed because another node changed the same rows."""
    changes = [change for name in _CONFLICTS if (change := evidence.change(name)) is not None]
    if not changes:
        raise _no_status(evidence)
    return sum(grown / seconds for grown, seconds in changes)


def _conflict_ratio(evidence: Evidence) -> float:
    """Return the transactions that failed as a share of all transactions that committed or failed."""
    failed, committed = sum(_grown(evidence, name) for name in _CONFLICTS), _grown(evidence, _COMMITS)
    return failed / (failed + committed) if failed else 0.0


def _ddl_threads(evidence: Evidence) -> float:
    """Return the mean number of threads executing DDL, or the number in the process list if larger."""
    listed = float(len(ddl_statements(evidence)))
    if not evidence.snapshots or "looks" in evidence.missing:
        if not listed:
            raise Unknown("looks", evidence.missing.get("looks"))
        return listed
    return max(listed, sum(seen.count for seen in ddl_stacks(evidence)) / len(evidence.snapshots))


def ddl_statements(evidence: Evidence) -> list[ConnectionActivity]:
    """Return the DDL statements that clients and appliers are executing, according to the process list."""
    return [
        one
        for one in evidence.statements
        if _DDL_TEXT.match(one.text) and not one.state.startswith("Waiting")
    ]


def ddl_stacks(evidence: Evidence) -> list[ObservedStack]:
    """Return the stacks of threads that are executing DDL."""
    patterns = Patterns(_DDL)
    return [
        seen
        for seen in evidence.seen
        if seen.wait not in _NOT_EXECUTING and any(map(patterns.matches, seen.functions))
    ]


def _group_throttled_threads(evidence: Evidence) -> float:
    """Return the mean number of threads that Group Replication's flow control delays."""
    taken = snapshots(evidence)
    found = sum(seen.count for seen in evidence.seen if _THROTTLED in seen.functions)
    return found / len(taken)


def group_members(evidence: Evidence) -> tuple[Mapping[str, str], ...]:
    """Return the result rows of the query ``group_members``. Raise Unknown if there are none."""
    found = evidence.answers.get("group_members")
    if not found:
        raise Unknown("sql", evidence.missing.get("sql.group_members") or evidence.missing.get("sql"))
    return found


def unreachable(evidence: Evidence) -> list[Mapping[str, str]]:
    """Return the members of the group with which this member cannot communicate."""
    return [row for row in group_members(evidence) if row["state"] == "UNREACHABLE"]


def applier_queue(row: Mapping[str, str]) -> int:
    """Return the number of transactions that a member has not yet applied."""
    queue = row["applier_queue"]
    return int(queue) if queue.isdecimal() else 0


def _group_members(evidence: Evidence) -> float:
    return float(len(group_members(evidence)))


def _group_unreachable(evidence: Evidence) -> float:
    return float(len(unreachable(evidence)))


def _group_majority_lost(evidence: Evidence) -> float:
    """Return 1 if so many members are unreachable that the group has lost its majority, else 0."""
    return float(2 * len(unreachable(evidence)) >= len(group_members(evidence)))


def _group_longest_queue(evidence: Evidence) -> float:
    return float(max(map(applier_queue, group_members(evidence))))


def _grown(evidence: Evidence, metric: str) -> float:
    change = evidence.change(metric)
    if change is None:
        raise _no_status(evidence)
    return change[0]


def _no_status(evidence: Evidence) -> Unknown:
    return Unknown("sql", evidence.missing.get("sql"))


#: The metrics that these facts use.
METRICS: Final = frozenset({_RECEIVED, _SENT, _QUEUE, _COMMITS, *_CONFLICTS})

FACTS: Final[FactFunctions] = {
    "galera_own_pauses_ratio": _own_pauses_ratio,
    "galera_conflict_rate": _conflict_rate,
    "galera_conflict_ratio": _conflict_ratio,
    "ddl_threads": _ddl_threads,
    "group_throttled_threads": _group_throttled_threads,
    "group_members": _group_members,
    "group_unreachable": _group_unreachable,
    "group_majority_lost": _group_majority_lost,
    "group_longest_queue": _group_longest_queue,
}
