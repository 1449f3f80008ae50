"""The latch that a thread is waiting for is derived from the thread's stack."""

from __future__ import annotations

import re

import pytest

from innoscope.diagnose.evidence import Evidence
from innoscope.diagnose.latches import wanted
from innoscope.sampling.latches import load, named
from innoscope.sampling.snapshot_history import CLIENT, ObservedStack

SLEEPS = ("__futex_abstimed_wait_common", "pthread_cond_wait", "os_event_wait_low", "sync_array_wait_event")
#: The innermost functions of recorded stacks, and the latch that must be derived from them.
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
    (
        *SLEEPS,
        "rw_lock_s_lock_spin",
        "locksys::Latches::Unique_sharded_rw_lock::s_lock",
        "locksys::Global_shared_latch_guard::Global_shared_latch_guard",
        "lock_rec_lock",
    ): "the lock system as a whole",
    (
        *SLEEPS,
        "TTASEventMutex<GenericPolicy>::enter",
        "locksys::Shard_naked_latch_guard::Shard_naked_latch_guard",
        "lock_table",
    ): "a part of the lock system",
    (
        *SLEEPS,
        "PolicyMutex<TTASEventMutex<GenericPolicy> >::enter",
        "log_writer",
        "std::thread",
    ): "writer_mutex",
    (
        *SLEEPS,
        "PolicyMutex<TTASEventMutex<GenericPolicy> >::enter",
        "trx_erase_from_serialisation_list_low",
        "trx_release_impl_and_expl_locks",
    ): "the order of commits",
    # The names sub_select and do_select end in "select", but these functions are not the system call.
    (
        "sched_yield",
        "rw_lock_s_lock_spin",
        "buf_page_get_gen",
        "rr_sequential",
        "sub_select",
        "do_select",
    ): "in buf_page_get_gen",
}


@pytest.mark.parametrize(("functions", "words"), STACKS.items(), ids=STACKS.values())
def test_latch_is_named_by_its_caller(functions: tuple[str, ...], words: str) -> None:
    assert words in named(functions)


def test_most_wanted_latch_is_first_and_rare_ones_are_omitted() -> None:
    index, page, *_, unknown, _ = STACKS
    seen = (
        ObservedStack(CLIENT, "mutex_wait", index, 30),
        ObservedStack(CLIENT, "spin", page, 66),
        ObservedStack(CLIENT, "mutex_wait", unknown, 4),
        ObservedStack(CLIENT, "on_cpu", page, 900),
    )
    evidence = Evidence({}, 0.0, 10.0, seen=seen)
    assert [line.split(" (")[0] for line in wanted(evidence, ("spin", "mutex_wait"))] == [
        "66 % of them wait for a page",
        "30 % of them wait for an index tree",
    ]
    assert wanted(evidence, ()) == []


def test_stack_without_symbols_is_not_guessed() -> None:
    nameless = ObservedStack(CLIENT, "mutex_wait", ("syscall", "mariadbd+0x1234", "mariadbd+0x2345"), 10)
    assert wanted(Evidence({}, 0.0, 10.0, seen=(nameless,)), ("mutex_wait",)) == []


def test_patterns_are_function_names() -> None:
    for latch in load():
        for pattern in latch.callers:
            assert re.fullmatch(r"[\w:<>*~]+", pattern), pattern
