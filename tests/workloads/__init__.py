"""Provide workloads that each put most of the server's busy threads into a known wait class.

>>> from workloads import RowLock
>>> with RowLock(server, 10) as workload:  # doctest: +SKIP
...     workload.expected, workload.connection_ids(), workload.os_threads()
"""

from workloads.base import Workload, WorkloadError
from workloads.blocked import Idle, MetadataLock, RowLock, Sleep, UserLock
from workloads.busy import (
    Burn,
    Cpu,
    Fsync,
    Oltp,
    Readers,
    Repeated,
    Sysbench,
    TableScan,
    UpdateStorm,
    Writers,
)
from workloads.crowd import Crowd
from workloads.probe import Gaps, LatencyProbe

WORKLOADS: dict[str, type[Workload]] = {
    kind.name: kind for kind in (Idle, Sleep, RowLock, MetadataLock, UpdateStorm, TableScan, Cpu, Burn, Fsync)
}

__all__ = [
    "WORKLOADS",
    "Burn",
    "Cpu",
    "Crowd",
    "Fsync",
    "Gaps",
    "Idle",
    "LatencyProbe",
    "MetadataLock",
    "Oltp",
    "Readers",
    "Repeated",
    "RowLock",
    "Sleep",
    "Sysbench",
    "TableScan",
    "UpdateStorm",
    "UserLock",
    "Workload",
    "WorkloadError",
    "Writers",
]
