"""Incidents of locks and latches."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, ClassVar

from incidents.lab import Incident
from workloads import Burn, Cpu, Idle, MetadataLock, Oltp, RowLock, TableScan, UpdateStorm

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from servers import Server


class _ManyRows(UpdateStorm):
    """The same updates, each of a row that hardly anybody else wants."""

    rows: ClassVar[int] = 10_000

    def statements(self) -> Sequence[str]:
        return ["UPDATE t1 SET b = b + 1 WHERE a = $R"]


_NO_SYNC = ("--innodb-flush-log-at-trx-commit=0",)

INCIDENTS = (
    Incident(
        "deadlock-search-559", "mysql-5.5.9", "deadlock_search",
        lambda s: UpdateStorm(s, 140), lambda s: _ManyRows(s, 140), options=_NO_SYNC,
    ),
    Incident(
        "deadlock-search-56", "mysql-5.6.24", "deadlock_search",
        lambda s: UpdateStorm(s, 140), lambda s: _ManyRows(s, 140), options=_NO_SYNC,
    ),
    Incident(
        "table-scan-97", "mysql-9.7", "io_reads",
        lambda s: TableScan(s, 8), lambda s: Cpu(s, 8), options=TableScan.server_options,
    ),
    Incident(
        "table-scan-559", "mysql-5.5.9", "io_reads",
        lambda s: TableScan(s, 8), lambda s: Cpu(s, 8), options=TableScan.server_options,
    ),
)  # fmt: skip
