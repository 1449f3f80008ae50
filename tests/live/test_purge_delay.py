"""Test that writers slowed down by innodb_max_purge_lag get the wait class purge_delay."""

from __future__ import annotations

import pytest

from innoscope.sampling.engine import Engine
from innoscope.target.discover import find_one
from scale import few
from servers import Server
from waiting import until
from workloads import UpdateStorm

#: MySQL servers with function names. The function that sleeps is inlined, so its callers identify the wait.
#: MariaDB computes the delay only while purge makes progress, so the wait does not occur reliably there.
NAMED = ("mysql-5.6.24", "mysql-5.7.22", "mysql-8.0.31", "mysql-9.7")


@pytest.mark.parametrize("name", few(NAMED, "mysql-5.7.22", reason="a few seconds each"))
def test_delayed_writers(name: str) -> None:
    options = ("--innodb-max-purge-lag=1", "--innodb-max-purge-lag-delay=200000")
    with Server(name, options=options) as server, UpdateStorm(server, 4), server.connect() as reader:
        cursor = reader.cursor()
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")  # purge stops, and the history grows
        engine = Engine(find_one(server.pid))

        def delayed() -> bool:
            return any(thread.wait == "purge_delay" for thread in engine.take_snapshot().threads)

        until(delayed, within_s=60)
