"""`diagnose` keeps only certain columns of the results of its SQL queries."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from innoscope.diagnose.sql_queries import query_all
from unit.sql_connection import FakeConnection

#: Some of the forty columns of SHOW SLAVE STATUS in MySQL 5.6. The error message contains a literal.
SLAVE_STATUS = {
    "Slave_IO_State": "Waiting for master to send event",
    "Slave_IO_Running": "Yes",
    "Slave_SQL_Running": "No",
    "Last_IO_Errno": 0,
    "Last_IO_Error": "",
    "Last_SQL_Errno": 1062,
    "Last_SQL_Error": "Could not execute Write_rows event on table shop.stock; Duplicate entry 'secret' for"
    " key 'PRIMARY', Error_code: 1062; handler error HA_ERR_FOUND_DUPP_KEY; the event's master log x",
    "Seconds_Behind_Master": None,
    "SQL_Delay": 0,
}


def test_replica_status_is_reduced_to_the_columns_needed() -> None:
    connection = FakeConnection({"SHOW SLAVE STATUS": (tuple(SLAVE_STATUS), [tuple(SLAVE_STATUS.values())])})
    target: Any = SimpleNamespace(flavour="mysql", version=(5, 6, 24))
    found = query_all(target, lambda: connection, 0)  # type: ignore[arg-type,return-value]
    assert found.answers["replication"] == (
        {
            "running": "No",
            "error": "1062",
            "applier_message": (
                "Could not execute Write_rows event on table shop.stock … HA_ERR_FOUND_DUPP_KEY"
            ),
            "receiving": "Yes",
            "receiver_error": "0",
            "receiver_message": "",
            "seconds": "",
            "delay": "0",
        },
    )
    assert "secret" not in repr(found.answers)
    assert connection.statements[-1] == "SHOW SLAVE STATUS", "last, because it may wait"
    assert connection.closed
