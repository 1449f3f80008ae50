"""Findings of writing, reading, the process and replicas, on made-up evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from innoscope.common.errors import BadFile
from innoscope.diagnose.evidence import Evidence, MetricReadings, Missing, OnFile, Statement
from innoscope.diagnose.host import Host
from innoscope.diagnose.sql_queries import default_questions, load
from innoscope.diagnose.verdict import Finding, Verdict, judge
from innoscope.sampling.snapshot_history import CLIENT, ObservedStack, SnapshotSummary

if TYPE_CHECKING:
    from pathlib import Path

SERVER = {"flavour": "mysql", "version": "5.6.24", "pid": "42"}
SECONDS = 10.0
APPLIER = "replication"


def evidence(threads: dict[tuple[str, str], int], *values: dict[str, Any], **more: Any) -> Evidence:
    """Ten looks that each saw these threads, and snapshots evenly over the time."""
    looks = tuple(SnapshotSummary(number, threads) for number in range(10))
    step = SECONDS / max(len(values) - 1, 1)
    snapshots = tuple(MetricReadings(number * step, one) for number, one in enumerate(values))
    return Evidence(SERVER, 0.0, SECONDS, snapshots, looks, **more)


def clients(**waits: int) -> dict[tuple[str, str], int]:
    return {(CLIENT, wait): count for wait, count in waits.items()}


def names(verdict: Verdict) -> list[str]:
    return [finding.name for finding in verdict.findings]


def first(one: Evidence) -> Finding:
    return judge(one).findings[0]


FULL = {"checkpoint_age_ratio": 0.9, "checkpoint_age_max_bytes": 4_000_000, "redo_written_bytes": 0}
LATER = FULL | {"redo_written_bytes": 10_000_000}


def test_a_storm_wants_somebody_who_waits() -> None:
    assert names(judge(evidence(clients(redo_space=3, on_cpu=1), FULL, LATER)))[0] == "flushing_storm"
    calm = names(judge(evidence(clients(on_cpu=4), FULL, LATER)))
    assert calm == ["redo_too_small"]


def test_an_age_that_goes_up_and_down_is_a_storm_too() -> None:
    low = LATER | {"checkpoint_age_ratio": 0.1, "redo_written_bytes": 20_000_000}
    assert names(judge(evidence(clients(redo_space=3), FULL, LATER, low)))[0] == "flushing_storm"


def test_a_dirty_limit_that_is_passed_for_a_moment_holds() -> None:
    over = {"buffer_pool_dirty_headroom_ratio": -0.2, "buffer_pool_dirty_ratio": 0.3}
    under = {"buffer_pool_dirty_headroom_ratio": 0.1, "buffer_pool_dirty_ratio": 0.1}
    assert names(judge(evidence(clients(on_cpu=1), over, over))) == ["dirty_limit"]
    assert names(judge(evidence(clients(on_cpu=1), over, under))) == []


def test_who_waits_for_a_free_page_comes_before_how_many_are_dirty() -> None:
    over = {"buffer_pool_dirty_headroom_ratio": -0.2, "buffer_pool_dirty_ratio": 0.96}
    waiting = clients(free_page_wait=1, fsync_data=3)
    assert names(judge(evidence(waiting, over, over)))[:2] == ["free_pages", "dirty_limit"]


def test_which_file_is_read() -> None:
    files = (
        OnFile("page_read", "shop/t1.ibd", 30),
        OnFile("page_read", "ibdata1", 10),
        OnFile("idle", "x", 9),
    )
    read = {"buffer_pool_pages_read": 0}
    found = first(evidence(clients(page_read=4), read, {"buffer_pool_pages_read": 400}, files=files))
    assert found.name == "io_slow"
    assert "takes about 100 ms" in found.title
    assert "files: shop/t1.ibd 75 %, ibdata1 25 %" in found.evidence


def test_the_toggle_that_was_left_on_is_named() -> None:
    found = first(evidence({}, {"toggle_in_force.io_capacity.sql": 1}))
    assert (found.name, found.evidence) == ("toggle_left_on", ("io_capacity",))


@pytest.mark.parametrize(
    ("said", "files"),
    [
        (
            "4:memory:/db\n0::/\n",
            {"memory/db/memory.usage_in_bytes": 30, "memory/db/memory.limit_in_bytes": 40},
        ),
        ("0::/db\n", {"db/memory.current": 30, "db/memory.max": 40}),
    ],
)
def test_how_full_a_control_group_is(tmp_path: Path, said: str, files: dict[str, int]) -> None:
    process = tmp_path / "proc" / "42"
    process.mkdir(parents=True)
    (process / "cgroup").write_text(said)
    for name, number in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{number}\n")
    host = Host(42, tmp_path / "proc", tmp_path / "groups")
    assert host.rates() == {"group_memory_ratio": 0.75}
    path.write_text("max\n")
    assert host.rates() == {}


def test_many_reads_are_not_slow_ones() -> None:
    read = {"buffer_pool_pages_read": 0}
    found = judge(evidence(clients(page_read=4), read, {"buffer_pool_pages_read": 400_000}))
    assert names(found) == ["io_reads"]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("recv_scan_log_recs", "it reads the redo log"),
        ("recv_recover_page_func", "it applies the redo log to pages"),
        ("trx_rollback_or_clean_recovered", "it rolls back"),
    ],
)
def test_the_phase_of_a_recovery(function: str, said: str) -> None:
    seen = (ObservedStack("background", "recovery", ("pread64", function, "start_thread"), 10),)
    found = first(
        evidence({("background", "recovery"): 1}, {"recovered_pages": 0}, {"recovered_pages": 9}, seen=seen)
    )
    assert found.name == "crash_recovery"
    assert [line for line in found.evidence if line.startswith("it ")] == [
        line for line in found.evidence if line.startswith(said)
    ]


def test_how_long_a_recovery_can_last() -> None:
    begun = {"recovery_scanned_bytes": 1_000_000, "checkpoint_age_max_bytes": 50_000_000}
    found = first(
        evidence({("background", "recovery"): 1}, begun, begun | {"recovery_scanned_bytes": 11_000_000})
    )
    assert "977 KB of redo per second; a full redo log takes 50 s" in found.evidence


REPLICA = {"running": "Yes", "error": "0", "seconds": "31", "delay": "0", "connection": ""}
SAID = Statement(5, "system user", "", "Connect", "Waiting for table metadata lock", 31, "ALTER TABLE t")


def test_an_applier_that_is_held_up() -> None:
    held = {(APPLIER, "metadata_lock"): 1}
    transactions = ({"connection": "9", "state": "RUNNING", "seconds": "60", "rows_locked": "0", "text": ""},)
    answers = {"replication": (REPLICA,), "transactions": transactions}
    found = first(evidence(held, statements=(SAID,), answers=answers))
    assert found.name == "replication_applier"
    assert found.title.startswith("The replica is 31 s behind")
    assert [blocker.words.partition(":")[0] for blocker in found.blockers] == [
        "applier, connection 5, Waiting for table metadata lock for 31 s",
        "perhaps connection 9",
    ]


def test_a_replica_that_keeps_up_or_is_told_to_be_late() -> None:
    at_rest = {(APPLIER, "replication"): 2}
    late = REPLICA | {"delay": "3600", "seconds": "3601"}
    busy = {(APPLIER, "on_cpu"): 1}
    assert names(judge(evidence(at_rest, answers={"replication": (REPLICA,)}))) == []
    assert names(judge(evidence(busy, answers={"replication": (late,)}))) == []
    assert names(judge(evidence(busy, answers={"replication": ()}))) == []


def test_an_applier_that_ended_with_an_error() -> None:
    ended = REPLICA | {"running": "No", "error": "1062", "seconds": ""}
    found = first(evidence({(APPLIER, "replication"): 1}, answers={"replication": (ended,)}))
    assert found.name == "replication_applier"
    assert "the applier stopped with error 1,062" in found.evidence


def test_without_the_right_to_ask_the_process_list_tells() -> None:
    missing = {"sql.replication": Missing("rights", "Access denied")}
    held = {(APPLIER, "metadata_lock"): 1}
    found = judge(evidence(held, statements=(SAID,), answers={"processes": ()}, missing=missing))
    assert names(found) == ["replication_applier"]
    assert found.cannot_tell == ()


@pytest.mark.parametrize(
    ("flavour", "version", "statement"),
    [
        ("mysql", (5, 6, 24), "SHOW SLAVE STATUS"),
        ("mariadb", (10, 11), "SHOW ALL SLAVES STATUS"),
        ("mysql", (9, 7), "SELECT w.SERVICE_STATE"),
    ],
)
def test_replicas_are_asked_in_their_own_words(
    flavour: str, version: tuple[int, ...], statement: str
) -> None:
    asked = default_questions()["replication"].asked_of(flavour, version)
    assert asked is not None
    assert asked.sql.startswith(statement)


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ({"mysql": "5.5+"}, "required field `sql`"),
        ({"mysql": 5.5, "sql": "x"}, r"servers\[0\]\.mysql: quote the version range: 5\.5"),
        ({"mysql": "new", "sql": "x"}, "malformed version range 'new'"),
        ({"from": "5.5", "sql": "x"}, "unknown field `from`"),
        ({"sql": "x", "named": {"Theirs": "ours"}}, "named: 'ours' is not among the columns"),
    ],
)
def test_an_invalid_question_is_named(tmp_path: Path, server: dict[str, Any], words: str) -> None:
    path = tmp_path / "questions.yaml"
    question = {"columns": ["a"], "servers": [server]}
    path.write_text(yaml.safe_dump({"version": 1, "questions": {"q": question}}))
    with pytest.raises(BadFile, match=rf"questions\.yaml, line \d+: questions\.q.*{words}"):
        load(path)
