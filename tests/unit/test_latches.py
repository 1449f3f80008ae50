"""Which latch a thread wants, told from its stack."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from innoscope.common.errors import BadFile
from innoscope.diagnose.evidence import Evidence
from innoscope.diagnose.latches import load, named, wanted
from innoscope.diagnose.rules import default_rules
from innoscope.sampling.classify import default_classifier
from innoscope.sampling.snapshot_history import CLIENT, ObservedStack

if TYPE_CHECKING:
    from pathlib import Path

SLEEPS = ("__futex_abstimed_wait_common", "pthread_cond_wait", "os_event_wait_low", "sync_array_wait_event")
#: As seen on the servers: the innermost functions, and what they want.
STACKS = {
    (
        *SLEEPS,
        "rw_lock_s_lock_spin",
        "btr_cur_search_to_nth_level",
        "row_ins_clust_index_entry_low",
    ): "index->lock",
    ("sched_yield", "rw_lock_s_lock_spin", "buf_page_get_gen", "btr_pcur_move_to_next_page"): "a page",
    (
        "sched_yield",
        "rw_lock_s_lock_spin",
        "mysqld+0x2a686bd",
        "Buf_fetch<Buf_fetch_normal>::single_page",
    ): "a page",
    (
        *SLEEPS,
        "rw_lock_x_lock_func",
        "dict_table_stats_lock",
        "dict_update_statistics",
    ): "dict_table_stats_lock",
    ("sched_yield", "mutex_spin_wait", "mtr_memo_slot_release.clone.3", "mtr_commit"): "the buffer pool",
    ("ut_delay", "mutex_spin_wait", "srv_suspend_mysql_thread", "row_mysql_handle_errors"): "kernel_mutex",
    ("ut_delay", "mutex_spin_wait", "log_write_up_to", "trx_commit_complete_for_mysql"): "the redo log",
    ("__lll_lock_wait", "pthread_mutex_lock", "open_table", "open_tables"): "LOCK_open",
    (
        "__lll_lock_wait",
        "pthread_mutex_lock",
        "Global_THD_manager::do_for_all_thd_copy",
    ): "the list of threads",
    (
        "__lll_lock_wait",
        "pthread_mutex_lock",
        "some_plugin_function",
        "sub_select",
    ): "a mutex, in some_plugin",
}


@pytest.mark.parametrize(("functions", "words"), STACKS.items(), ids=STACKS.values())
def test_a_latch_has_a_name(functions: tuple[str, ...], words: str) -> None:
    assert words in named(functions)


def test_functions_whose_names_end_like_a_system_call_belong_to_no_lock() -> None:
    scanning = (
        "sched_yield",
        "rw_lock_s_lock_spin",
        "buf_page_get_gen",
        "rr_sequential",
        "sub_select",
        "do_select",
    )
    assert named(scanning).endswith("in buf_page_get_gen")


def test_the_most_wanted_come_first_and_rare_ones_are_left_out() -> None:
    index, page, *_, unknown = STACKS
    seen = (
        ObservedStack(CLIENT, "mutex_wait", index, 30),
        ObservedStack(CLIENT, "spin", page, 66),
        ObservedStack(CLIENT, "mutex_wait", unknown, 4),
        ObservedStack(CLIENT, "on_cpu", page, 900),
    )
    evidence = Evidence({}, 0.0, 10.0, seen=seen)
    assert [line.split(" (")[0] for line in wanted(evidence, ("spin", "mutex_wait"))] == [
        "66 % of them want a page",
        "30 % of them want an index's tree",
    ]
    assert wanted(evidence, ()) == []


def test_what_has_no_names_is_not_guessed() -> None:
    nameless = ObservedStack(CLIENT, "mutex_wait", ("syscall", "mariadbd+0x1234", "mariadbd+0x2345"), 10)
    assert wanted(Evidence({}, 0.0, 10.0, seen=(nameless,)), ("mutex_wait",)) == []


def test_each_pattern_is_a_function_name() -> None:
    for latch in load():
        for pattern in latch.callers:
            assert re.fullmatch(r"[\w:<>*~]+", pattern), pattern


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "latches.yaml"
    broken.write_text("version: 1\nlatches: [{latch: a page}]\n")
    with pytest.raises(BadFile, match=r"latches\.yaml, line 2: latches\[0\]: .*required field `callers`"):
        load(broken)
    broken.write_text("version: 1\nlatches:\n- {latch: a page, callers: [f], kind: spin}\n")
    with pytest.raises(BadFile, match=r"line 3: latches\[0\]\.kind: Invalid enum value 'spin'"):
        load(broken)


def test_findings_name_latches_of_wait_classes_there_are() -> None:
    classes = default_classifier().catalog.classes
    naming = [rule for rule in default_rules() if rule.latches]
    assert naming
    for rule in naming:
        assert set(rule.latches) <= set(classes), rule.name
