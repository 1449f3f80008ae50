"""Test wait classes with stacks that are derived from the source code of many server versions."""

from __future__ import annotations

import pytest

from innoscope.sampling.classify import default_classifier
from unit.snapshots import frames

#: How InnoDB waits: on an event (MySQL, MariaDB up to 10.5), on a condition variable, or by sleeping.
EVENT = ("libc.so.6!__futex_abstimed_wait_common", "libc.so.6!pthread_cond_wait", "os_event_wait_low")
COND = ("libc.so.6!__futex_abstimed_wait_common", "libc.so.6!pthread_cond_wait")
SLEEP = ("libc.so.6!clock_nanosleep", "libc.so.6!nanosleep")
OLD_SLEEP = (*SLEEP, "os_thread_sleep")

CLIENT = ("mysql_execute_command", "dispatch_command", "do_command", "libc.so.6!start_thread")
WRITER = ("ha_innobase::write_row", "handler::ha_write_row", "Sql_cmd_insert_values::execute_inner", *CLIENT)
COMMIT = ("innobase_commit", "ha_commit_low", "MYSQL_BIN_LOG::process_commit_stage_queue", *CLIENT)
THREAD = ("libc.so.6!start_thread",)
DIRECT_WRITE = (
    "libc.so.6!pwrite64",
    "os_file_write_func",
    "Fil_shard::do_io",
    "fil_io",
    "Double_write::write_to_datafile",
    "dblwr::write",
    "buf_flush_page",
)

WAITS = [
    # admission
    ("5.7", (*OLD_SLEEP, "srv_conc_enter_innodb", *WRITER), "innodb_queue"),
    ("9.7", (*SLEEP, "srv_conc_enter_innodb", *WRITER), "innodb_queue"),
    ("9.7", (*SLEEP, "innobase_srv_conc_enter_innodb", *WRITER), "innodb_queue"),
    # purge
    ("5.7", (*OLD_SLEEP, "row_insert_for_mysql", *WRITER), "purge_delay"),
    ("8.0", (*SLEEP, "row_update_for_mysql_using_upd_graph", "row_update_for_mysql", *WRITER), "purge_delay"),
    ("8.0", (*SLEEP, "buf_LRU_get_free_block", "row_ins", "row_insert_for_mysql", *WRITER), "free_page_wait"),
    ("9.7", (*SLEEP, "", "", "ha_innobase::update_row", *CLIENT), "purge_delay"),
    ("MariaDB 10.11", (*SLEEP, "innodb_max_purge_lag_wait_update", *CLIENT), "purge_delay"),
    # pages
    ("8.0", (*SLEEP, "Buf_fetch<Buf_fetch_normal>::check_state", "buf_page_get_gen", *WRITER), "page_read"),
    ("MariaDB 10.4", (*OLD_SLEEP, "buf_page_get_low", "buf_page_get_gen", *WRITER), "page_read"),
    ("MariaDB 10.11", (*SLEEP, "buf_pool_t::page_fix", *WRITER), "page_read"),
    ("8.0", (*SLEEP, "buf_page_create", "fsp_page_create", *WRITER), "page_write"),
    ("MariaDB 10.5", (*COND, "buf_page_create_low", *WRITER), "page_write"),
    (
        "8.0.19",
        (*EVENT, "buf_dblwr_flush_buffered_writes", "buf_flush_page_cleaner_thread", *THREAD),
        "doublewrite",
    ),
    ("8.0.19", (*EVENT, "buf_dblwr_write_single_page", "buf_LRU_get_free_block", *WRITER), "doublewrite"),
    ("Percona 5.7", (*EVENT, "buf_dblwr_add_to_batch", "buf_flush_page", *THREAD), "doublewrite"),
    # 8.0.20 and newer call dblwr::write even if the doublewrite buffer is off
    (
        "8.0.31",
        (*DIRECT_WRITE, "buf_flush_single_page_from_LRU", "buf_LRU_get_free_block", *WRITER),
        "free_page_wait",
    ),
    ("8.0.31", (*EVENT, "Fil_shard::space_flush", "fil_flush", "dblwr::write", *THREAD), "fsync_data"),
    ("8.0.31", (*DIRECT_WRITE, "buf_flush_do_batch", *THREAD), "page_write"),
    ("8.0.31", (*SLEEP, "Double_write::submit", "dblwr::write", "buf_flush_page", *THREAD), "doublewrite"),
    # flushing
    ("8.4", (*EVENT, "buf_flush_await_no_flushing", "buf_flush_lists", *CLIENT), "flush_wait"),
    ("5.7", (*EVENT, "buf_flush_wait_batch_end", "buf_flush_lists", *CLIENT), "flush_wait"),
    ("5.7", (*OLD_SLEEP, "FlushObserver::flush", "row_merge_build_indexes", *CLIENT), "flush_wait"),
    (
        "MariaDB 10.3",
        (*OLD_SLEEP, "fil_check_pending_operations", "fil_delete_tablespace", *CLIENT),
        "flush_wait",
    ),
    (
        "Percona 5.7",
        (*OLD_SLEEP, "buf_lru_manager_sleep_if_needed", "buf_lru_manager", *THREAD),
        "background_idle",
    ),
    # redo
    ("8.0", (*SLEEP, "log_wait_for_space_in_log_recent_closed", "mtr_t::commit", *WRITER), "mutex_wait"),
    ("9.7", (*SLEEP, "Buf_flush_list_added_lsns::wait_to_add", "mtr_t::commit", *WRITER), "mutex_wait"),
    ("8.0", (*EVENT, "log_buffer_s_lock_wait", "mtr_t::commit", *WRITER), "mutex_wait"),
    ("8.0", (*SLEEP, "log_buffer_write_completed", "mtr_t::commit", *WRITER), "redo_write_wait"),
    ("8.0.30", (*EVENT, "log_files_wait_for_next_file_available", "log_writer", *THREAD), "redo_space"),
    ("8.0", (*SLEEP, "log_writer_wait_on_archiver", "log_writer", *THREAD), "redo_space"),
    ("8.0", (*EVENT, "log_writer_wait_on_checkpoint", "log_writer", *THREAD), "redo_space"),
    ("MariaDB 11.4", (*SLEEP, "std::this_thread::__sleep_for", "log_free_check", *WRITER), "redo_space"),
    ("8.0", (*EVENT, "Log_thread_waiting::wait", "log_writer", *THREAD), "background_idle"),
    # locks
    ("5.7", (*EVENT, "lock_wait_suspend_thread", "row_mysql_handle_errors", *WRITER), "row_lock"),
    ("MariaDB 10.4", (*EVENT, "lock_wait_suspend_thread", "row_mysql_handle_errors", *WRITER), "row_lock"),
    ("MariaDB 10.6", (*COND, "lock_wait", "row_mysql_handle_errors", *WRITER), "row_lock"),
    ("5.7", (*OLD_SLEEP, "trx_kill_blocking", "lock_wait_suspend_thread", *WRITER), "row_lock"),
    (
        "8.0",
        (
            *EVENT,
            "sync_array_wait_event",
            "rw_lock_s_lock_spin",
            "locksys::Global_shared_latch_guard::Global_shared_latch_guard",
            "lock_rec_lock",
            *WRITER,
        ),
        "mutex_wait",
    ),
    (
        "8.0.17",
        ("DeadlockChecker::search", "DeadlockChecker::check_and_resolve", "lock_rec_lock", *WRITER),
        "deadlock_search",
    ),
    ("5.7", (*COND, "Query_cache::try_lock", "Query_cache::send_result_to_client", *CLIENT), "mutex_wait"),
    ("MariaDB 10.11", (*COND, "Query_cache::lock", "Query_cache::invalidate_table", *COMMIT), "mutex_wait"),
    # commit
    ("8.0", (*COND, "Commit_stage_manager::enroll_for", *COMMIT), "group_commit"),
    ("5.7", (*COND, "Stage_manager::enroll_for", *COMMIT), "group_commit"),
    ("8.0", (*COND, "MYSQL_BIN_LOG::wait_for_prep_xids", *CLIENT), "group_commit"),
    ("MariaDB 10.5", (*COND, "THD::wait_for_wakeup_ready", *CLIENT), "group_commit"),
    (
        "MariaDB 10.3",
        (*COND, "libgalera_smm.so!", "wsrep_run_wsrep_commit", "ha_commit_trans", *CLIENT),
        "galera_wait",
    ),
    ("PXC 5.7", (*COND, "libgalera_smm.so!", "wsrep_to_isolation_begin", *CLIENT), "galera_wait"),
    # replication, clone and others
    ("8.0", (*COND, "Mutex_cond_array::wait", "Gtid_state::wait_for_gtid", *CLIENT), "replication"),
    ("8.0", (*SLEEP, "Clone_Sys::wait", "clone_mark_wait", *CLIENT), "clone"),
    ("8.0", (*SLEEP, "myclone::Client::wait", "myclone::Client::clone", *CLIENT), "clone"),
    (
        "8.0",
        (*EVENT, "AIO::wait_until_no_pending_writes", "buf_flush_sync_all_buf_pools", *CLIENT),
        "flush_wait",
    ),
    ("MariaDB 10.11", (*COND, "buf_pool_t::shrink", "buf_pool_t::resize", *CLIENT), "pool_scan"),
    (
        "MariaDB 10.11",
        (*COND, "mariadb_sleep_for_space", "wait_for_free_space", "my_write", *CLIENT),
        "disk_full",
    ),
    ("8.0", (*EVENT, "Histogram_sampler::wait_for_start_of_buffering", *CLIENT), "statistics"),
    ("Percona 8.0", (*COND, "get_event", "worker_main", *THREAD), "background_idle"),
]


@pytest.mark.parametrize(("version", "stack", "wait"), WAITS)
def test_waits_of_other_versions(version: str, stack: tuple[str, ...], wait: str) -> None:
    syscall = "clock_nanosleep" if stack[0] == SLEEP[0] else "futex"
    running = wait == "deadlock_search"
    found = default_classifier().classify(
        frames(*stack), running=running, syscall=None if running else syscall
    )
    assert found == wait, version
