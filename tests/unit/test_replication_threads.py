"""The findings about stopped replicas show error messages without row values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from innoscope.diagnose.error_messages import of_applier, of_receiver
from innoscope.diagnose.verdict import judge
from unit.evidence import evidence, names

if TYPE_CHECKING:
    from innoscope.diagnose.verdict import Finding

STATUS = {
    "channel": "", "running": "Yes", "error": "0", "applier_message": "", "receiving": "Yes",
    "receiver_error": "0", "receiver_message": "", "seconds": "0", "delay": "0",
}  # fmt: skip
DUPLICATE = {"running": "No", "error": "1062", "applier_message": "Could not execute", "seconds": ""}
REFUSED = {"receiving": "Connecting", "receiver_error": "2003", "receiver_message": "error connecting"}


def found(*rows: dict[str, str], question: str = "replication") -> tuple[Finding, ...]:
    return judge(evidence({"idle": 1}, answers={question: rows})).findings


def test_stopped_applier_and_receiver_have_their_errors() -> None:
    [one] = found(STATUS | DUPLICATE, STATUS | REFUSED | {"channel": "west"})
    assert one.name == "replication_stopped"
    assert one.evidence == (
        "applier, error 1062: Could not execute",
        "receiver of channel west, error 2003: error connecting",
    )


def test_each_thread_of_mysql_8_has_its_own_row() -> None:
    thread = {"channel": "", "running": "ON", "error": "0", "receiver_message": "", "applier_message": ""}
    failed = {"running": "CONNECTING", "error": "2003", "receiver_message": "x"}
    receiver = thread | failed | {"role": "receiver"}
    worker = thread | {"role": "applier", "running": "OFF", "error": "1032", "applier_message": "y"}
    [one] = found(receiver, worker, worker, question="replication_threads")
    assert one.evidence == ("receiver, error 2003: x", "applier, error 1032: y")


def test_replica_that_an_operator_stopped_is_a_minor_finding() -> None:
    off = {"running": "No", "receiving": "No"}
    [one] = found(STATUS | off)
    assert (one.name, one.score) == ("replication_off", 15)
    assert one.title == "Replication is stopped, without an error: 2 of its threads are not running"
    [one] = found(STATUS | DUPLICATE | {"receiving": "No"})
    assert one.name == "replication_stopped"


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"receiver_error": "2003"},  # the last error of a receiver that has reconnected
        {"receiving": "Connecting"},
        {"receiving": "No", "running": "No", "channel": "group_replication_recovery"},
        {"error": "not a number"},
    ],
)
def test_working_replica_has_no_finding(status: dict[str, str]) -> None:
    assert found(STATUS | status) == ()


def test_account_without_privileges_gets_no_finding() -> None:
    assert names(judge(evidence({"idle": 1}, answers={"processes": ()}))) == []


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (
            "Could not execute Update_rows_v1 event on table shop.stock; Can't find record in 'stock',"
            " Error_code: 1032; handler error HA_ERR_END_OF_FILE; the event's master log binlog.000001",
            "Could not execute Update_rows_v1 event on table shop.stock … HA_ERR_END_OF_FILE",
        ),
        (
            "Worker 1 failed executing transaction 'ANONYMOUS' at source log b.000001, end_log_pos 9; Could"
            " not execute Delete_rows event on table shop.stock; Duplicate entry 'it's; secret' for key 'x'",
            "Worker 1 failed executing transaction … Delete_rows event on table shop.stock",
        ),
        ("Error 'Duplicate entry 'secret' for key 'a'' on query. Query: 'INSERT INTO t VALUES ('x", "Error"),
        ("Could not execute Write_rows event on table a.b; secret, Error_code: 1644",
         "Could not execute Write_rows event on table a.b"),
        ("Relay log \x1b[2J\nread failure", "Relay log \\x1b[2J read failure"),
        ("", ""),
    ],
)  # fmt: skip
def test_row_values_are_removed_from_applier_messages(message: str, words: str) -> None:
    assert of_applier(message) == words


def test_messages_are_short_and_printable() -> None:
    assert len(of_applier("x" * 5000)) == len(of_receiver("x" * 5000)) == 300
    assert of_receiver("Got fatal error 1236:\n 'Could not\x1b find'") == (
        "Got fatal error 1236: 'Could not\\x1b find'"
    )
