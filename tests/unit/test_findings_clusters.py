"""Test the findings about clusters with synthetic evidence."""

from __future__ import annotations

from typing import Any

import pytest

from innoscope.diagnose.evidence import ConnectionActivity
from innoscope.diagnose.replica_applier import appliers
from innoscope.diagnose.verdict import judge
from innoscope.sampling.snapshot_history import ObservedStack
from unit.evidence import evidence, names

COUNTERS = (
    "galera_flow_control_paused_seconds", "galera_flow_control_sent", "galera_flow_control_received",
    "galera_commits", "galera_certification_failures", "galera_brute_force_aborts",
)  # fmt: skip
WRITERS = {"galera_wait": 6, "idle": 2}
ALTER = "ALTER TABLE stock FORCE"


def _galera(*grown: float, queue: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the first and the last reading of a node whose counters increased by the given amounts."""
    before = dict.fromkeys(COUNTERS, 100.0) | {"galera_receive_queue": queue}
    after = {name: 100.0 + number for name, number in zip(COUNTERS, grown, strict=True)}
    return before, after | {"galera_receive_queue": queue}


@pytest.mark.parametrize(
    ("grown", "queue", "threads", "first"),
    [
        ((9, 0, 0, 5, 0, 0), 0, WRITERS, "galera_flow_control"),
        ((9, 0, 300, 500, 0, 0), 3, WRITERS, "galera_flow_control"),
        ((9, 0, 0, 0, 0, 0), 120, {"idle": 2}, "galera_slow_node"),
        ((9, 280, 300, 0, 0, 0), 0, WRITERS, "galera_slow_node"),
        ((1, 10, 100, 5000, 300, 900), 0, WRITERS, "galera_certification"),
        ((0, 0, 0, 5000, 0, 0), 0, WRITERS, "galera_replication"),
    ],
    ids=["blocked", "slowed", "blocks the others", "slows the others", "conflicts", "healthy"],
)
def test_node_of_a_galera_cluster(
    grown: tuple[float, ...], queue: int, threads: dict[str, int], first: str
) -> None:
    verdict = judge(evidence(threads, *_galera(*grown, queue=queue)))
    assert names(verdict)[0] == first
    assert names(verdict)[1:] in ([], ["galera_replication"])


@pytest.mark.parametrize(
    ("text", "state", "found"),
    [
        (ALTER, "copy to tmp table", True),
        ("CREATE UNIQUE INDEX i ON stock (b)", "altering table", True),
        (ALTER, "Waiting for TOI DDL", False),
        ("CREATE TEMPORARY TABLE t SELECT ?", "Sending data", False),
        ("DROP TEMPORARY TABLE t", "", False),
        ("UPDATE altered SET b = ?", "Updating", False),
    ],
)
def test_ddl_is_found_in_the_process_list(text: str, state: str, found: bool) -> None:
    statement = ConnectionActivity(4, "system user", "", "Sleep", state, 8, text)
    verdict = judge(evidence(WRITERS, *_galera(0, 0, 0, 0, 0, 0), statements=(statement,)))
    assert ("galera_toi" in names(verdict)) == found
    if found:
        [blocker] = verdict.findings[0].blockers
        assert blocker.words == f"connection 4, system user, {state} for 8 s: {text}"


def test_ddl_is_found_by_its_stack() -> None:
    stack = ObservedStack("replication", "page_read", ("pread", "mysql_alter_table"), 10, (77,))
    verdict = judge(evidence(WRITERS, *_galera(0, 0, 0, 0, 0, 0), seen=(stack,)))
    assert names(verdict)[0] == "galera_toi"
    assert [blocker.words for blocker in verdict.findings[0].blockers] == ["thread 77 executes DDL"]


def test_idle_threads_of_galera_are_not_busy_appliers() -> None:
    states = ("wsrep aborter idle", "wsrep applier idle", "wsrep applier committed", "Updating")
    statements = tuple(ConnectionActivity(2, "system user", "", "Sleep", state, 99, "") for state in states)
    assert [one.state for one in appliers(evidence({}, statements=statements))] == ["Updating"]


GROUP = {"group_replication_wait": 6}


def _member(state: str = "ONLINE", queue: str = "0", port: int = 3306) -> dict[str, str]:
    return {"member": f"db:{port}", "state": state, "role": "SECONDARY", "applier_queue": queue}


def _throttled(count: int) -> ObservedStack:
    frames = (
        "pthread_cond_timedwait",
        "Flow_control_module::do_wait",
        "group_replication_trans_before_commit",
    )
    return ObservedStack("connection", "group_replication_wait", frames, count)


def test_group_without_a_majority_names_the_unreachable_members() -> None:
    members = (_member(), _member("UNREACHABLE", port=1), _member("UNREACHABLE", port=2))
    verdict = judge(evidence(GROUP, answers={"group_members": members}))
    assert names(verdict) == ["group_replication_wait", "group_replication_commit"]
    blockers = [blocker.words for blocker in verdict.findings[0].blockers]
    assert blockers == ["member db:1 is unreachable", "member db:2 is unreachable"]


def test_flow_control_of_a_group_names_the_slowest_member() -> None:
    members = (_member(), _member(queue="4104", port=1), _member(queue="7", port=2))
    verdict = judge(evidence(GROUP, answers={"group_members": members}, seen=(_throttled(60),)))
    assert names(verdict) == ["group_replication_wait", "group_replication_commit"]
    [blocker] = verdict.findings[0].blockers
    assert blocker.words == "member db:1: applier queue of 4,104 transactions"


@pytest.mark.parametrize("seen", [(), (_throttled(2),)], ids=["never", "seldom"])
def test_group_with_a_majority_is_healthy(seen: tuple[ObservedStack, ...]) -> None:
    members = (_member(), _member(queue="3"), _member("UNREACHABLE"))
    verdict = judge(evidence(GROUP, answers={"group_members": members}, seen=seen))
    assert names(verdict) == ["group_replication_commit"]


def test_malformed_queue_of_a_member_counts_as_empty() -> None:
    members = (_member(queue=""), _member(queue="many"))
    verdict = judge(evidence(GROUP, answers={"group_members": members}, seen=(_throttled(60),)))
    assert verdict.findings[0].blockers == ()
