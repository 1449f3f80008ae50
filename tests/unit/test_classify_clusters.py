"""Threads of cluster nodes get the right wait class. The stacks are from real nodes, but shortened."""

from __future__ import annotations

import pytest

from innoscope.sampling.classify import default_classifier
from unit.snapshots import frames

WAIT = ("libc.so.6!__futex_abstimed_wait_common", "libc.so.6!pthread_cond_wait")
COMMAND = ("mysql_execute_command", "mysql_parse", "dispatch_command", "do_command", "handle_one_connection")
COMMIT = ("wsrep::transaction::before_commit", "ha_commit_trans", "trans_commit_stmt", *COMMAND)
APPLIER = ("wsrep::wsrep_provider_v26::run_applier", "start_wsrep_THD", "libc.so.6!start_thread")
EVENT = "Rows_log_event::do_apply_event"
#: Galera's library is stripped: its own functions have no symbols.
GALERA = "libgalera_smm.so!"
GROUP = (
    "group_replication_trans_before_commit",
    "Trans_delegate::before_commit",
    "MYSQL_BIN_LOG::commit",
    *COMMAND,
)


@pytest.mark.parametrize(
    ("stack", "wait"),
    [
        ((*WAIT, GALERA, "wsrep::wsrep_provider_v26::certify", *COMMIT), "galera_wait"),
        ((*WAIT, GALERA, "wsrep::wsrep_provider_v26::commit_order_enter", *COMMIT), "galera_wait"),
        ((*WAIT, "Wsrep_client_service::wait_for_replayers", *COMMIT), "galera_wait"),
        ((*WAIT, GALERA, "wsrep::wsrep_provider_v26::replay", *COMMAND), "galera_wait"),
        ((*WAIT, GALERA, *APPLIER), "background_idle"),
        ((*WAIT, "start_wsrep_THD", "libc.so.6!start_thread"), "background_idle"),
        ((*WAIT, "", "Wsrep_high_priority_service::apply_toi", GALERA, *APPLIER), "other"),
        ((*WAIT, "", "handler::ha_rnd_pos", EVENT, GALERA, *APPLIER), "row_lock"),
        ((*WAIT, "MDL_wait::timed_wait", EVENT, GALERA, *APPLIER), "metadata_lock"),
        ((*WAIT, "Wait_ticket<unsigned int>::waitTicket", *GROUP), "group_replication_wait"),
        ((*WAIT, "Flow_control_module::do_wait", *GROUP), "group_replication_wait"),
        ((*WAIT, "Applier_module::applier_thread_handle", "libc.so.6!start_thread"), "replication"),
    ],
)  # fmt: skip
def test_threads_of_clusters(stack: tuple[str, ...], wait: str) -> None:
    assert default_classifier().classify(frames(*stack), syscall="futex") == wait


def test_ddl_statement_that_galera_refused_waits_for_its_next_attempt() -> None:
    """Use a stack that is derived from the source (client_state.cpp in wsrep-lib), not from a real node."""
    stack = frames(
        "libc.so.6!clock_nanosleep", "libc.so.6!usleep", "wsrep::client_state::poll_enter_toi", *COMMAND
    )
    assert default_classifier().classify(stack, syscall="clock_nanosleep") == "galera_wait"


def test_communication_thread_of_a_group_is_idle_in_the_background() -> None:
    stack = frames(
        "libc.so.6!poll", "group_replication.so!", "task_loop", "xcom_taskmain2", "libc.so.6!start_thread"
    )
    assert default_classifier().classify(stack, syscall="poll") == "background_idle"
