"""Activities are recognized from stacks, and their signals are derived from consecutive snapshots."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from innoscope.common.errors import BadFile
from innoscope.diagnose.evidence import ConnectionActivity, MissingSource
from innoscope.diagnose.rules import RuleCondition
from innoscope.diagnose.signals import Signals, is_signal
from innoscope.diagnose.unavailable import Unknown
from innoscope.diagnose.verdict import judge
from innoscope.sampling.activities import activities_of, load
from innoscope.sampling.snapshot_history import CLIENT, TIDS_KEPT, SnapshotSummary, doing
from unit.evidence import evidence, names

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from innoscope.diagnose.evidence import Evidence

Answers = dict[str, tuple[dict[str, str], ...]]

APPLIER = "replication"
SCAN_80 = (
    "row_search_mvcc", "ha_innobase::general_fetch", "handler::ha_rnd_next",
    "Rows_log_event::do_scan_and_update", "Rows_log_event::do_apply_event", "slave_worker_exec_job_group",
)  # fmt: skip
SCAN_1011 = (
    "mariadbd+0x1", "handler::ha_rnd_next", "Rows_log_event::find_row", "Update_rows_log_event::do_exec_row",
    "Rows_log_event::do_apply_event",
)  # fmt: skip
SCAN_57 = ("Rows_log_event::do_table_scan_and_update", "Rows_log_event::do_apply_event", "handle_slave_sql")
BY_INDEX = ("handler::ha_index_read_map", "Rows_log_event::find_row", "Update_rows_log_event::do_exec_row")


@pytest.mark.parametrize(
    ("kind", "functions", "found"),
    [
        (APPLIER, SCAN_80, ("applier_scan",)),
        (APPLIER, SCAN_1011, ("applier_scan",)),
        (APPLIER, SCAN_57, ("applier_scan",)),
        (APPLIER, BY_INDEX, ()),
        (CLIENT, SCAN_57, ()),
        (CLIENT, ("handler::ha_rnd_next", "mysql_update"), ()),
        (CLIENT, (), ()),
    ],
)
def test_activity_of_a_stack(kind: str, functions: tuple[str, ...], found: tuple[str, ...]) -> None:
    assert activities_of(kind, functions) == found


def test_threads_are_grouped_by_activity() -> None:
    threads = {
        (APPLIER, "on_cpu", SCAN_57): [7],
        (APPLIER, "page_read", ("pread64", *SCAN_57)): list(range(100, 200)),
        (APPLIER, "idle", ("poll",)): [9],
    }
    found = doing(threads)
    assert list(found) == ["applier_scan"]
    assert found["applier_scan"] == (7, *range(100, 99 + TIDS_KEPT))


def observed(*tids: Sequence[int], answers: Answers | None = None, blind: bool = False) -> Evidence:
    """Return evidence with a snapshot every 0.5 s. ``tids`` lists the appliers that scan a table in each."""
    snapshots = tuple(
        SnapshotSummary(0.5 * number, {(APPLIER, "on_cpu"): 1}, doing={"applier_scan": tuple(one)})
        for number, one in enumerate(tids)
    )
    missing = {"looks": MissingSource("rights", "no BPF")} if blind else {}
    return replace(evidence(None, answers=answers or {}, missing=missing), snapshots=snapshots)


@pytest.mark.parametrize(
    ("tids", "mean", "longest"),
    [
        ([[1], [1], [1], []], 0.75, 1.0),
        ([[1], [2], [1], [2]], 1.0, 0.0),
        ([[1, 2], [2, 1], [2], [3]], 1.5, 1.0),
        ([[], [], [], []], 0.0, 0.0),
    ],
)
def test_signals_of_an_activity(tids: list[list[int]], mean: float, longest: float) -> None:
    signals = Signals(observed(*tids))
    assert signals["doing.applier_scan"] == mean
    assert signals["lasting.applier_scan"] == longest


def test_without_stacks_activities_are_unknown() -> None:
    for one in (observed(), observed([1], blind=True)):
        with pytest.raises(Unknown):
            _ = Signals(one)["doing.applier_scan"]


def test_activities_are_named_in_the_catalog() -> None:
    assert is_signal("lasting.rollback")
    assert not is_signal("doing.nothing")
    with pytest.raises(ValueError, match="unknown signal"):
        RuleCondition(signal="doing.nothing", at_least=1)


def test_malformed_catalog_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "activities.yaml"
    path.write_text("version: 1\nactivities:\n  a: {kinds: [connection], stacks: [[]]}\n")
    with pytest.raises(BadFile, match="stacks"):
        load(path)


TABLES: Answers = {"applier_tables": ({"connection": "5", "schema": "shop", "object": "visits"},)}
LATE: Answers = {"replication": ({"running": "Yes", "error": "0", "seconds": "31", "delay": "0"},)}


def test_applier_that_scans_explains_the_lag() -> None:
    verdict = judge(observed([1], [1], [1], [1], answers=TABLES | LATE))
    assert names(verdict) == ["applier_without_key", "replication_applier"]
    assert verdict.findings[0].evidence == (
        "applier threads in a full table scan: 1",
        "the replica is 31 s behind",
        "it changes shop.visits",
    )
    assert verdict.findings[1].follows_from == "applier_without_key"


def test_applier_that_seldom_scans_is_healthy() -> None:
    assert names(judge(observed([1], [], [], [], [], answers=TABLES))) == []


ROLLBACK_80 = (
    "row_undo_mod",
    "row_undo_step",
    "que_run_threads",
    "trx_rollback_for_mysql",
    "ha_rollback_low",
)
ROLLBACK_1011 = ("mariadbd+0x1", "mariadbd+0x2", "ha_rollback_trans", "trans_rollback", "do_command")
COPY_57 = (
    "my_b_fill",
    "MYSQL_BIN_LOG::do_write_cache",
    "binlog_cache_data::flush",
    "MYSQL_BIN_LOG::ordered_commit",
)
COPY_1011 = ("MYSQL_BIN_LOG::write_cache", "MYSQL_BIN_LOG::trx_group_commit_leader", "binlog_commit")
FOLLOWER = ("pthread_cond_wait", "Stage_manager::enroll_for", "MYSQL_BIN_LOG::ordered_commit")


@pytest.mark.parametrize(
    ("functions", "found"),
    [
        (ROLLBACK_80, ("rollback",)),
        (ROLLBACK_1011, ("rollback",)),
        (COPY_57, ("binlog_copy",)),
        (COPY_1011, ("binlog_copy",)),
        (FOLLOWER, ()),
    ],
)
def test_activity_of_a_client(functions: tuple[str, ...], found: tuple[str, ...]) -> None:
    assert activities_of(CLIENT, functions) == found


def clients(activity: str, tids: Sequence[int], **waiting: int) -> Evidence:
    """Return evidence with one snapshot per item of ``tids``, the thread that performs the activity, or 0."""
    counts = {(CLIENT, wait): count for wait, count in waiting.items()}
    snapshots = tuple(
        SnapshotSummary(float(number), counts, doing={activity: (tid,)} if tid else {})
        for number, tid in enumerate(tids)
    )
    rolling = {"connection": "9", "state": "ROLLING BACK", "seconds": "60", "rows_modified": "41000"}
    return replace(evidence(None, answers={"transactions": (rolling,)}), snapshots=snapshots)


def test_long_rollback_explains_the_waits_for_its_rows() -> None:
    verdict = judge(clients("rollback", [7] * 5, row_lock=8, on_cpu=1))
    assert names(verdict) == ["long_rollback", "row_lock_convoy"]
    assert verdict.findings[0].evidence == (
        "one thread has been rolling back for 4.0 s of the 10 s observed",
        "8 threads wait for row locks; no lock is released before the rollback is complete",
        "connection 9 had 41,000 changes left to undo, 60 s after its transaction began",
    )


def test_many_short_rollbacks_are_healthy() -> None:
    assert names(judge(clients("rollback", [7, 8, 9, 7, 8], on_cpu=4))) == []


def test_large_transaction_in_the_binary_log_is_named() -> None:
    commit = ConnectionActivity(5, "app", "web1", "Query", "query end", 4, "COMMIT", tid=7)
    verdict = judge(replace(clients("binlog_copy", [7] * 5, group_commit=8, on_cpu=1), statements=(commit,)))
    assert names(verdict) == ["binlog_bulk"]
    [blocker] = verdict.findings[0].blockers
    assert blocker.words == (
        "connection 5 (thread 7), app@web1, which copies its transaction to the binary log, runs: COMMIT"
    )
    assert blocker.connection == 5


def test_group_commit_of_small_transactions_is_another_finding() -> None:
    snapshots = clients("binlog_copy", [7, 8, 9, 10, 7], group_commit=7, fsync_binlog=1)
    assert names(judge(snapshots)) == ["commit_fsync"]


def test_thread_without_a_statement_is_named_by_its_id() -> None:
    [blocker] = judge(clients("rollback", [0, 7, 7, 7])).findings[0].blockers
    assert blocker.words == "thread 7, which rolls back its transaction"
