"""Test the findings about writing, reading, the process and replicas with synthetic evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml

from innoscope.common.errors import BadFile
from innoscope.diagnose.evidence import ConnectionActivity, MissingSource, OnFile
from innoscope.diagnose.host import HostCounters
from innoscope.diagnose.sql_queries import default_queries, load
from innoscope.diagnose.verdict import judge
from innoscope.sampling.snapshot_history import ObservedStack
from unit.evidence import evidence, names

if TYPE_CHECKING:
    from pathlib import Path

    from innoscope.diagnose.evidence import Evidence
    from innoscope.diagnose.verdict import Finding

APPLIER = "replication"


def first(one: Evidence) -> Finding:
    return judge(one).findings[0]


FULL = {"checkpoint_age_ratio": 0.9, "checkpoint_age_max_bytes": 4_000_000, "redo_written_bytes": 0}
LATER = FULL | {"redo_written_bytes": 10_000_000}


LOW = LATER | {"checkpoint_age_ratio": 0.1, "redo_written_bytes": 20_000_000}
OVER = {"buffer_pool_dirty_headroom_ratio": -0.2, "buffer_pool_dirty_ratio": 0.3}
UNDER = {"buffer_pool_dirty_headroom_ratio": 0.1, "buffer_pool_dirty_ratio": 0.1}
FAST_READS = {"buffer_pool_pages_read": 0}, {"buffer_pool_pages_read": 400_000}


@pytest.mark.parametrize(
    ("threads", "readings", "found"),
    [
        ({"redo_space": 3, "on_cpu": 1}, (FULL, LATER), "flushing_storm"),
        ({"redo_space": 3}, (FULL, LATER, LOW), "flushing_storm"),
        ({"on_cpu": 4}, (FULL, LATER), "redo_too_small"),
        ({"on_cpu": 1}, (OVER, OVER), "dirty_limit"),
        ({"on_cpu": 1}, (OVER, UNDER), None),
        ({"free_page_wait": 1, "fsync_data": 3}, (OVER, OVER), "free_pages"),
        ({"page_read": 4}, FAST_READS, "io_reads"),
    ],
    ids=[
        "full redo log and waiting threads",
        "oscillating checkpoint age",
        "full redo log without waiting threads",
        "dirty limit exceeded",
        "dirty limit exceeded for a moment",
        "free page waits come before the dirty limit",
        "many fast reads are not slow",
    ],
)
def test_first_finding(
    threads: dict[str, int], readings: tuple[dict[str, float], ...], found: str | None
) -> None:
    assert next(iter(names(judge(evidence(threads, *readings)))), None) == found


def test_slow_io_names_the_files() -> None:
    files = (
        OnFile("page_read", "shop/t1.ibd", 30),
        OnFile("page_read", "ibdata1", 10),
        OnFile("idle", "x", 9),
    )
    read = {"buffer_pool_pages_read": 0}
    found = first(evidence({"page_read": 4}, read, {"buffer_pool_pages_read": 400}, files=files))
    assert found.name == "io_slow"
    assert "takes about 100 ms" in found.title
    assert "files: shop/t1.ibd 75 %, ibdata1 25 %" in found.evidence


@pytest.mark.parametrize(
    ("threads", "files", "found"),
    [
        ({"redo_write_wait": 6, "fsync_redo": 1}, (), ["commit_fsync"]),
        ({"redo_write_wait": 6, ("redo", "fsync_redo"): 1}, (), ["commit_fsync"]),
        ({"group_commit": 6, "fsync_binlog": 1}, (), ["commit_fsync"]),
        ({"redo_write_wait": 6}, (OnFile("redo_write_wait", "ib_logfile0", 9),), ["commit_fsync"]),
        ({"redo_write_wait": 6}, (), ["unexplained"]),
        ({"redo_write_wait": 6}, (OnFile("redo_write_wait", "ib_logfile0", 1),), ["unexplained"]),
        ({"group_commit": 6, ("page_cleaner", "fsync_data"): 1}, (), ["unexplained"]),
    ],
    ids=[
        "a client syncs the redo log",
        "log_flusher syncs the redo log",
        "a client syncs the binary log",
        "the redo log is written synchronously",
        "waiters without a slow fsync",
        "a fast write of the redo log",
        "an fsync of another file",
    ],
)
def test_commits_that_wait_need_a_slow_log(
    threads: dict[Any, int], files: tuple[OnFile, ...], found: list[str]
) -> None:
    assert names(judge(evidence(threads, files=files))) == found


TMP = "temporary_table"
ROW_ON_DISK = ObservedStack("connection", TMP, ("mi_write", "end_write", "sub_select"), 30)
ROW_SOMEWHERE = ObservedStack("connection", TMP, ("handler::ha_write_tmp_row", "sub_select"), 30)
ROW_OF_ARIA = ObservedStack("connection", TMP, ("maria_write", "handler::ha_write_tmp_row"), 30)
MOVED = {"temporary_disk_tables": 0}, {"temporary_disk_tables": 20}
NOT_MOVED = {"temporary_disk_tables": 0}, {"temporary_disk_tables": 3}


@pytest.mark.parametrize(
    ("seen", "readings", "found"),
    [
        (ROW_ON_DISK, NOT_MOVED, "tmp_spill"),
        (ROW_OF_ARIA, NOT_MOVED, "tmp_spill"),
        (ROW_SOMEWHERE, MOVED, "tmp_spill"),
        (ROW_SOMEWHERE, NOT_MOVED, "unexplained"),
    ],
)
def test_temporary_tables_must_be_on_disk(
    seen: ObservedStack, readings: tuple[dict[str, float], ...], found: str
) -> None:
    assert first(evidence({"temporary_table": 3, "on_cpu": 1}, *readings, seen=(seen,))).name == found


@pytest.mark.parametrize(
    ("threads", "found"),
    [
        ({("background", "pool_scan"): 1, "mutex_wait": 8, "on_cpu": 1}, ["pool_scan", "latch_contention"]),
        ({"pool_scan": 1, "opening_tables": 6, "on_cpu": 1}, ["pool_scan", "opening_tables"]),
        ({"pool_scan": 1, "mutex_wait": 1, "on_cpu": 6}, []),
        ({"mutex_wait": 8, "on_cpu": 1}, ["latch_contention"]),
    ],
    ids=["the server's own thread", "a client's thread", "nobody waits for the scan", "no scan"],
)
def test_scan_of_the_buffer_pool(threads: dict[Any, int], found: list[str]) -> None:
    assert names(judge(evidence(threads))) == found


def test_toggle_left_on_is_named() -> None:
    found = first(evidence({}, {"toggle_in_force.io_capacity.sql": 1}))
    assert (found.name, found.evidence) == ("toggle_left_on", ("io_capacity",))


@pytest.mark.parametrize(
    ("control_groups", "files"),
    [
        (
            "4:memory:/db\n0::/\n",
            {"memory/db/memory.usage_in_bytes": 30, "memory/db/memory.limit_in_bytes": 40},
        ),
        ("0::/db\n", {"db/memory.current": 30, "db/memory.max": 40}),
    ],
)
def test_memory_share_of_the_control_group(
    tmp_path: Path, control_groups: str, files: dict[str, int]
) -> None:
    process = tmp_path / "proc" / "42"
    process.mkdir(parents=True)
    (process / "cgroup").write_text(control_groups)
    for name, number in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{number}\n")
    host = HostCounters(42, tmp_path / "proc", tmp_path / "groups")
    assert host.rates() == {"group_memory_ratio": 0.75}
    path.write_text("max\n")
    assert host.rates() == {}


@pytest.mark.parametrize(
    ("function", "phase"),
    [
        ("recv_scan_log_recs", "reading the redo log"),
        ("recv_recover_page_func", "applying the redo log to pages"),
        ("trx_rollback_or_clean_recovered", "rolling back uncommitted transactions"),
    ],
)
def test_recovery_has_its_phase(function: str, phase: str) -> None:
    seen = (ObservedStack("background", "recovery", ("pread64", function, "start_thread"), 10),)
    found = first(
        evidence({("background", "recovery"): 1}, {"recovered_pages": 0}, {"recovered_pages": 9}, seen=seen)
    )
    assert found.name == "crash_recovery"
    [line] = [line for line in found.evidence if "100 % of the snapshots" in line]
    assert line.startswith(phase)


def test_recovery_has_an_estimate_of_its_time() -> None:
    begun = {"recovery_scanned_bytes": 1_000_000, "checkpoint_age_max_bytes": 50_000_000}
    found = first(
        evidence({("background", "recovery"): 1}, begun, begun | {"recovery_scanned_bytes": 11_000_000})
    )
    assert "977 KB/s of redo; a full redo log takes 50 s" in found.evidence


REPLICA = {"running": "Yes", "error": "0", "seconds": "31", "delay": "0", "connection": ""}
APPLYING = ConnectionActivity(
    5, "system user", "", "Connect", "Waiting for table metadata lock", 31, "ALTER TABLE t"
)


def test_delayed_applier_has_its_blockers() -> None:
    held = {(APPLIER, "metadata_lock"): 1}
    transactions = ({"connection": "9", "state": "RUNNING", "seconds": "60", "rows_locked": "0", "text": ""},)
    answers = {"replication": (REPLICA,), "transactions": transactions}
    found = first(evidence(held, statements=(APPLYING,), answers=answers))
    assert found.name == "replication_applier"
    assert found.title.startswith("The replica is 31 s behind")
    assert [blocker.words.partition(":")[0] for blocker in found.blockers] == [
        "applier, connection 5, Waiting for table metadata lock for 31 s",
        "perhaps connection 9",
    ]


def test_idle_or_intentionally_delayed_replica_has_no_finding() -> None:
    at_rest = {(APPLIER, "replication"): 2}
    late = REPLICA | {"delay": "3600", "seconds": "3601"}
    busy = {(APPLIER, "on_cpu"): 1}
    assert names(judge(evidence(at_rest, answers={"replication": (REPLICA,)}))) == []
    assert names(judge(evidence(busy, answers={"replication": (late,)}))) == []
    assert names(judge(evidence(busy, answers={"replication": ()}))) == []


def test_process_list_replaces_the_replica_status() -> None:
    missing = {"sql.replication": MissingSource("rights", "Access denied")}
    held = {(APPLIER, "metadata_lock"): 1}
    found = judge(evidence(held, statements=(APPLYING,), answers={"processes": ()}, missing=missing))
    assert names(found) == ["replication_applier"]
    assert [one.findings for one in found.cannot_tell] == [("replication_stopped", "replication_off")]


@pytest.mark.parametrize(
    ("flavour", "version", "statement"),
    [
        ("mysql", (5, 6, 24), "SHOW SLAVE STATUS"),
        ("mariadb", (10, 11), "SHOW ALL SLAVES STATUS"),
        ("mysql", (9, 7), "SELECT w.CHANNEL_NAME, w.SERVICE_STATE"),
    ],
)
def test_statement_for_the_replica_status_depends_on_the_version(
    flavour: str, version: tuple[int, ...], statement: str
) -> None:
    query = default_queries()["replication"].for_server(flavour, version)
    assert query is not None
    assert query.sql.startswith(statement)


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ({"mysql": 5.5, "sql": "x"}, r"servers\[0\]\.mysql: quote the version range: 5\.5"),
        ({"sql": "x", "named": {"Theirs": "ours"}}, "named: 'ours' is not among the columns"),
    ],
)
def test_invalid_query_is_named(tmp_path: Path, server: dict[str, Any], words: str) -> None:
    path = tmp_path / "questions.yaml"
    question = {"columns": ["a"], "servers": [server]}
    path.write_text(yaml.safe_dump({"version": 1, "questions": {"q": question}}))
    with pytest.raises(BadFile, match=rf"questions\.yaml, line \d+: questions\.q.*{words}"):
        load(path)
