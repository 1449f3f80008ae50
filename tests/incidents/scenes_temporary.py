"""Define incidents with internal temporary tables that do not fit into memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from incidents.lab import Incident
from incidents.table_filling import doubled
from workloads import Repeated

if TYPE_CHECKING:
    from servers import Server

_CLIENTS: Final = 6
_ROWS: Final = 20_000
_LAZY: Final = "--innodb-flush-log-at-trx-commit=0"
#: An option that makes INSERT … SELECT assign ids without gaps.
_ONE_BY_ONE: Final = "--innodb-autoinc-lock-mode=0"
_SMALL: Final = (_LAZY, _ONE_BY_ONE, "--tmp-table-size=64K", "--max-heap-table-size=64K")
_LARGE: Final = (_LAZY, _ONE_BY_ONE, "--tmp-table-size=64M", "--max-heap-table-size=64M")


def _table(server: Server) -> None:
    server.sql(
        "CREATE DATABASE lab",
        "CREATE TABLE lab.t1 (a INT AUTO_INCREMENT PRIMARY KEY, b CHAR(100)) ENGINE=InnoDB",
        *doubled("lab.t1", "b", "CONCAT(CRC32(RAND()), RAND())", _ROWS),
    )


def _grouping(server: Server) -> Repeated:
    """Count the distinct values of a column with a temporary table that has one row per value."""
    return Repeated(server, _CLIENTS, ["SELECT COUNT(*) FROM (SELECT DISTINCT b FROM lab.t1) d"])


def _spilling(name: str, server: str) -> Incident:
    return Incident(
        name,
        server,
        "tmp_spill",
        _grouping,
        _grouping,
        setup=_table,
        options=_SMALL,
        twin_options=_LARGE,
        what="6 clients run SELECT DISTINCT; the temporary tables are larger than tmp_table_size (64 KB)",
    )


INCIDENTS = (
    _spilling("tmp-spill-56", "mysql-5.6.24"),
    _spilling("tmp-spill-57", "mysql-5.7.22"),
    _spilling("tmp-spill-80", "mysql-8.0.31"),
    _spilling("tmp-spill-1011", "mariadb-10.11"),
)
