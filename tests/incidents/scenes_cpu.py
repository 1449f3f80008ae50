"""Define incidents with too many threads, a CPU quota, or innodb_thread_concurrency."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from incidents.device import quota
from incidents.lab import Incident
from waiting import until
from workloads import Burn, Idle, Oltp, Repeated
from workloads.crowd import Crowd

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers import Server

#: Number of CPU-bound threads: far too many for a machine with two CPUs.
_MANY = 24
#: Number of CPU-bound threads of the twin: one per CPU of such a machine.
_FEW = 2
_CLIENTS = 16
_ONE_AT_A_TIME = ("--innodb-thread-concurrency=1",)
_GTID = ("--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--log-bin=binlog", "--server-id=1")
_UNKNOWN_GTID = "00000000-0000-0000-0000-000000000001:1"


def _many(server: Server) -> Burn:
    return Burn(server, _MANY)


def _few(server: Server) -> Burn:
    return Burn(server, _FEW)


def _busy(server: Server) -> Oltp:
    return Oltp(server, 4)


@contextlib.contextmanager
def _throttled(server: Server) -> Iterator[None]:
    with _busy(server), quota(server, 0.2):
        yield


def _scans(server: Server) -> Repeated:
    """Scan a table in the buffer pool with more clients than the server admits to InnoDB."""
    rows = " UNION ALL ".join(["SELECT 1"] * 10)
    digits = ", ".join(f"({rows}) d{number}" for number in range(4))
    make = (f"CREATE TABLE t1 (a INT AUTO_INCREMENT PRIMARY KEY) SELECT 'x' AS b FROM {digits}",)
    return Repeated(server, _CLIENTS, ["SELECT COUNT(*) FROM t1 WHERE b = 'z'"], make=make)


@contextlib.contextmanager
def _waits_for_transaction(server: Server) -> Iterator[None]:
    """Wait for the GTID of a transaction that never commits. No finding covers this wait."""
    with Idle(server, 10) as idle, Crowd(server, 4, idle.database) as crowd:
        crowd.send(f"SELECT WAIT_FOR_EXECUTED_GTID_SET('{_UNKNOWN_GTID}', 100)")
        until(lambda: len(idle.listed("INFO LIKE 'SELECT WAIT_FOR%'")) == 4)
        yield


def _idle(server: Server) -> Idle:
    return Idle(server, 10)


def _concurrency(name: str, server: str) -> Incident:
    return Incident(
        name,
        server,
        "thread_concurrency",
        _scans,
        _scans,
        options=_ONE_AT_A_TIME,
        twin_options=(),
        what="16 clients scan a table, and innodb_thread_concurrency=1 admits only one thread to InnoDB",
    )


def _saturated(name: str, server: str) -> Incident:
    return Incident(name, server, "cpu_saturated", _many, _few, what="24 CPU-bound statements run on 2 CPUs")


INCIDENTS = (
    _saturated("cpu-saturated-57", "mysql-5.7.22"),
    _saturated("cpu-saturated-80", "mysql-8.0.31"),
    _concurrency("thread-concurrency-56", "mysql-5.6.24"),
    _concurrency("thread-concurrency-57", "mysql-5.7.22"),
    _concurrency("thread-concurrency-80", "mysql-8.0.31"),
    Incident(
        "cpu-throttled-80",
        "mysql-8.0.31",
        "cpu_throttled",
        _throttled,
        _busy,
        what="4 clients read and write, and the CPU quota of the server's cgroup is 0.2 CPUs",
    ),
    Incident(
        "unexplained-80",
        "mysql-8.0.31",
        "unexplained",
        _waits_for_transaction,
        _idle,
        options=_GTID,
        what="4 clients wait for a GTID that never arrives, which no finding covers",
    ),
)
