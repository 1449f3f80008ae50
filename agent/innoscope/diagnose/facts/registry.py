"""Combine the facts of all subjects, and list the metrics that they use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from innoscope.diagnose.facts import (
    buffer_pool,
    cluster,
    commits,
    connections,
    cpu,
    latch_waits,
    observation,
    phases,
    redo_log,
    replication,
    table_cache,
    temporary_tables,
    thread_pool,
    transactions,
)

if TYPE_CHECKING:
    from innoscope.diagnose.evidence import FactFunctions

FACTS: Final[FactFunctions] = {
    **buffer_pool.FACTS,
    **cluster.FACTS,
    **commits.FACTS,
    **connections.FACTS,
    **cpu.FACTS,
    **latch_waits.FACTS,
    **observation.FACTS,
    **phases.FACTS,
    **redo_log.FACTS,
    **replication.FACTS,
    **table_cache.FACTS,
    **temporary_tables.FACTS,
    **thread_pool.FACTS,
    **transactions.FACTS,
}

#: All metrics that facts use, so that callers can skip the others.
METRICS: Final = frozenset[str]().union(
    buffer_pool.METRICS,
    cluster.METRICS,
    connections.METRICS,
    observation.METRICS,
    redo_log.METRICS,
    table_cache.METRICS,
    thread_pool.METRICS,
    transactions.METRICS,
)
