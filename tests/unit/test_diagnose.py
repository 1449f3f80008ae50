"""The catalog's rules derive the right findings from synthetic evidence."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from innoscope.common.errors import BadFile
from innoscope.common.samples import Histogram
from innoscope.common.schema import convert
from innoscope.diagnose.evidence import ConnectionActivity, Evidence, MissingSource
from innoscope.diagnose.facts import registry
from innoscope.diagnose.incident.codec import decode, encode
from innoscope.diagnose.rules import FindingsFile, default_rules, fill, metrics_read
from innoscope.diagnose.signals import Signals
from innoscope.diagnose.text import record, text
from innoscope.diagnose.unavailable import Unknown
from innoscope.diagnose.verdict import judge
from innoscope.memory.locks.held import HeldLock
from innoscope.metrics.registry import default
from innoscope.sampling.classify import default_classifier
from innoscope.sampling.snapshot_history import CLIENT, ObservedStack
from innoscope.toggles import catalog
from unit.evidence import evidence, names

ROW_LOCK = {"signal": "threads.row_lock", "at_least": 1}
WAITING = ("futex", "os_event_wait_low", "lock_wait_suspend_thread", "row_search_for_mysql")


def test_rules_name_existing_toggles_and_wait_classes() -> None:
    toggles = catalog.load()
    classes = default_classifier().catalog.classes
    for rule in default_rules():
        assert set(rule.toggles) <= toggles.keys(), rule.name
        assert {*rule.stacks, *rule.latches} <= {*classes, "unexplained"}, rule.name
        for item in rule.when:
            for condition in item.alternatives:
                kind, _, rest = condition.signal.partition(".")
                assert kind not in ("threads", "share", "background", "growth") or rest in classes, rule.name


def test_metrics_that_rules_read_are_declared() -> None:
    read = metrics_read(default_rules())
    assert [name for name in read if name not in default()] == []
    # Rules read these metrics in conditions, scores, texts, series or facts.
    assert {"mysqld_stopped", "recovered_pages", "toggle_in_force", "read_ahead_pages"} <= read
    assert not {"mutex_wait_seconds", "master_ticks"} & read


def test_metrics_that_facts_read_are_listed() -> None:
    texts = [path.read_text() for path in Path(registry.__file__).parent.glob("*.py")]
    named = re.findall(r'"([a-z0-9_]+)(?:\.[a-z_]+)?"', "".join(texts))
    assert {name for name in named if name in default()} == registry.METRICS
    # Each metric in METRICS must also occur outside that list.
    text = "".join(text.partition("METRICS: Final")[0] for text in texts)
    assert [name for name in registry.METRICS if f'"{name}"' not in text] == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            {"when": [ROW_LOCK | {"at_least": None}]},
            r"\.when\[0\]: threads\.row_lock: needs at_least or below",
        ),
        ({"when": [{"signal": "hunch.row_lock", "at_least": 1}]}, r"\.when\[0\]: unknown signal"),
        ({"when": [{"signal": "rate.no_such_metric", "at_least": 1}]}, r"\.when\[0\]: unknown signal"),
        ({"when": [{"at_least": 1}]}, r"\.when\[0\]: unknown signal"),
        ({"when": [ROW_LOCK | {"above": 1}]}, r"\.when\[0\]: .*unknown field `above`"),
        ({"when": [{"any": [{"signal": "x", "below": 1}]}]}, r"\.when\[0\]\.any\[0\]: unknown signal: 'x'"),
        ({"when": [ROW_LOCK | {"any": [ROW_LOCK]}]}, r"\.when\[0\]: any must be a list of signals"),
        ({"score": {"base": 1, "signal": "x", "full": 1, "most": 2}}, r"\.score: unknown signal: 'x'"),
        ({"title": "{threads.row_lock}"}, ": malformed placeholder"),
        ({"title": "{threads.row_lock:furlongs}"}, ": unknown unit"),
        ({"title": "{threads.row_lock:count|thread}"}, ": malformed placeholder"),
        ({"do": ["{hunch.a:count}"]}, ": unknown signal: 'hunch.a'"),
        ({"series": ["no_such_metric"]}, ": unknown metric: 'no_such_metric'"),
        ({"blocker": "somebody"}, ": unknown blocker"),
        ({"explains": ["nothing_known"]}, ": explains an unknown finding: 'nothing_known'"),
        ({"name": "two"}, ": unknown field `name`"),
    ],
)
def test_invalid_rule_is_named(change: dict[str, Any], problem: str) -> None:
    good = {"title": "t", "when": [ROW_LOCK], "score": 1, "why": "w", "do": ["d"]}
    convert({"version": 1, "findings": {"other": good, "one": good}}, FindingsFile, "findings.yaml")
    with pytest.raises(BadFile, match=f"^findings.yaml: (findings\\.)?one{problem}"):
        convert(
            {"version": 1, "findings": {"other": good, "one": good | change}}, FindingsFile, "findings.yaml"
        )


@pytest.mark.parametrize(
    ("number", "shown"),
    [("1", "1 thread waits"), ("1.0", "1.0 threads wait"), ("20", "20 threads wait")],
)
def test_words_agree_with_their_number(number: str, shown: str) -> None:
    text = "{threads.row_lock:count|thread waits|threads wait} for row locks"
    assert fill(text, lambda *_: number) == f"{shown} for row locks"


def test_busy_healthy_server_has_no_findings() -> None:
    calm = {"mysqld_stopped": 0, "checkpoint_age_ratio": 0.3, "buffer_pool_dirty_headroom_ratio": 0.4}
    verdict = judge(evidence({"idle": 100, "on_cpu": 6, "fsync_redo": 1}, calm, calm))
    assert names(verdict) == []
    assert any("Nothing wrong was found" in line for line in text(evidence({"idle": 3}), verdict))


def test_row_lock_convoy_has_its_blocker() -> None:
    transactions = (
        {"connection": "7", "state": "RUNNING", "seconds": "30", "rows_locked": "2", "text": ""},
        {"connection": "8", "state": "LOCK WAIT", "seconds": "9", "rows_locked": "1", "text": "UPDATE t"},
        {"connection": "9", "state": "RUNNING", "seconds": "60", "rows_locked": "0", "text": ""},
    )
    statements = (ConnectionActivity(7, "app", "web1", "Sleep", "", 29, "", 70),)
    seen = (
        ObservedStack(CLIENT, "row_lock", WAITING, 100, (80, 81)),
        ObservedStack(CLIENT, "idle", ("poll", "vio_read"), 10, (70,)),
    )
    observed = evidence(
        {"row_lock": 10}, seen=seen, statements=statements, answers={"transactions": transactions}
    )
    verdict = judge(observed)
    found = verdict.findings[0]
    assert found.name == "row_lock_convoy"
    [blocker] = found.blockers
    assert "connection 7, app@web1, idle in its transaction for 29 s" in blocker.words
    assert blocker.stack == ("poll", "vio_read")
    assert f"   blocker: {blocker.words}" in list(text(observed, verdict))
    assert found.stacks == (seen[0],)
    assert "     vio_read" in list(text(observed, verdict))
    assert "     poll,vio_read" in list(text(observed, verdict, full=True))


def test_stacks_that_differ_only_in_the_c_library_are_merged() -> None:
    own = ("os_event_wait_low", "lock_wait_suspend_thread", "row_search_for_mysql")
    seen = tuple(
        ObservedStack(CLIENT, "row_lock", (*inner, *own), 50, (80,))
        for inner in (("__futex_abstimed_wait_common", "pthread_cond_wait"), ("pthread_mutex_lock",))
    )
    observed = evidence({"row_lock": 10}, seen=seen)
    shown = [line for line in text(observed, judge(observed)) if " × " in line]
    assert shown == [f"      100 × {','.join(own)}"]
    complete = [line for line in text(observed, judge(observed), full=True) if " × " in line]
    assert [line.split("×")[1].split(",")[0] for line in complete] == [
        " __futex_abstimed_wait_common",
        " pthread_mutex_lock",
    ]


def test_thread_inside_a_function_that_others_wait_for_is_the_blocker() -> None:
    waiting = ("__lll_lock_wait", "inline_mysql_mutex_lock", "open_table", "open_tables", "mysql_parse")
    inside = ("pread64", "os_file_read", "dict_load_table", "open_table", "open_tables", "mysql_parse")
    seen = (
        ObservedStack(CLIENT, "opening_tables", waiting, 300, (1, 2, 3)),
        ObservedStack(CLIENT, "page_read", inside, 10, (9,)),
        ObservedStack(CLIENT, "on_cpu", ("evaluate", "mysql_parse"), 10, (10,)),
    )
    counts = {"opening_tables": 30, "page_read": 1}
    found = judge(evidence(counts, seen=seen)).findings[0]
    assert found.name == "opening_tables"
    [blocker] = found.blockers
    assert blocker.words == "thread 9 inside open_table (page read)"
    assert blocker.stack == inside
    statements = (ConnectionActivity(42, "app", "web1", "Query", "Opening tables", 9, "SELECT * FROM t", 9),)
    [blocker] = judge(evidence(counts, seen=seen, statements=statements)).findings[0].blockers
    assert blocker.words == (
        "connection 42 (thread 9), app@web1 inside open_table (page read), runs: SELECT * FROM t; 30 wait"
    )


def test_consequences_are_listed_after_their_cause() -> None:
    full = {"checkpoint_age_ratio": 0.95, "redo_written_bytes": 0}
    later = full | {"redo_written_bytes": 10_000_000}
    verdict = judge(evidence({"redo_space": 9, "mutex_wait": 9}, full, later))
    assert names(verdict)[0] == "flushing_storm"
    rest = {finding.name: finding.follows_from for finding in verdict.findings[1:]}
    assert rest["redo_space"] == rest["latch_contention"] == "flushing_storm"


def test_stopped_server_is_the_first_finding() -> None:
    verdict = judge(evidence({"row_lock": 50}, {"mysqld_stopped": 1}, {"mysqld_stopped": 1}))
    assert names(verdict) == ["server_stopped", "row_lock_convoy"]
    assert verdict.findings[1].follows_from == "server_stopped"


def test_missing_source_is_listed_once_with_its_reason() -> None:
    missing = {
        "sql": MissingSource("refused", "Too many connections", "wait"),
        "looks": MissingSource("rights", "not root"),
    }
    verdict = judge(evidence(None, missing=missing))
    assert "too_many_connections" in names(verdict)
    by_source = {one.source: one for one in verdict.cannot_tell}
    assert "row_lock_convoy" in by_source["looks"].findings
    assert by_source["looks"].words == "not root"
    assert verdict.checked < verdict.rules
    assert "Not checked, because data is missing:" in list(text(evidence(None, missing=missing), verdict))


def test_metrics_that_a_server_does_not_have_are_not_missing() -> None:
    assert judge(evidence({"idle": 1})).cannot_tell == ()


def test_signals_of_counters_and_histograms() -> None:
    first = {"row_lock_waits": 5, "fsync_seconds.redo": Histogram((0, 1), 3)}
    last = {"row_lock_waits": 25, "fsync_seconds.redo": Histogram((0, 1, 0, 100), 3 + 900)}
    signals = Signals(evidence({"idle": 1}, first, last))
    assert signals["rate.row_lock_waits"] == 2
    assert signals["rate.fsync_seconds"] == signals["rate.fsync_seconds.redo"] == 10
    assert signals["mean.fsync_seconds.redo"] == pytest.approx(9e-9)
    assert signals["p99.fsync_seconds.redo"] == 16e-9
    assert signals["load.fsync_seconds.redo"] == pytest.approx(90e-9)
    with pytest.raises(Unknown):
        signals["mean.fsync_seconds.binlog"]


@pytest.mark.parametrize(("waits", "found"), [(1_000, False), (20_000, True)])
def test_free_page_waits_are_judged_relative_to_page_reads(waits: int, found: bool) -> None:
    first = {"free_block_waits": 0, "buffer_pool_pages_read": 0}
    last = {"free_block_waits": waits, "buffer_pool_pages_read": 80_000}
    seen = evidence({"on_cpu": 4, "page_read": 2}, first, last)
    assert ("free_pages" in names(judge(seen))) is found


def test_same_evidence_gives_the_same_record() -> None:
    one = evidence({"row_lock": 10, "idle": 5}, seen=(ObservedStack(CLIENT, "row_lock", WAITING, 100, (1,)),))
    assert record(one, judge(one)) == record(replace(one), judge(replace(one)))
    assert record(one, judge(one))["client_threads"] == {"row_lock": 10.0, "idle": 5.0}


def test_record_and_incident_file_use_the_key_looks_for_snapshots() -> None:
    held = HeldLock("mutex", "LOCK_open", 4096, 7, (8,), 1, snapshots=3)
    one = evidence({"mutex": 10}, {"uptime_seconds": 1.0}, owners=(held,))
    assert record(one, judge(one))["owners"][0]["looks"] == 3
    stored = encode(one)
    assert stored["owners"][0]["looks"] == 3
    assert (len(stored["looks"]), len(stored["snapshots"])) == (10, 1)
    assert decode(Evidence, stored) == one
