"""Read values over SQL, under the names that the memory reader uses."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pymysql.connections import Connection

#: The status variable that corresponds to each value, on all servers that have the variable.
_STATUS: Final[Mapping[str, str]] = {
    "buffer_pool_pages": "Innodb_buffer_pool_pages_total",
    "buffer_pool_dirty_pages": "Innodb_buffer_pool_pages_dirty",
    "buffer_pool_free_pages": "Innodb_buffer_pool_pages_free",
    "buffer_pool_data_pages": "Innodb_buffer_pool_pages_data",
    "buffer_pool_pages_read": "Innodb_pages_read",
    "buffer_pool_pages_written": "Innodb_pages_written",
    "buffer_pool_reads": "Innodb_buffer_pool_reads",
    "free_block_waits": "Innodb_buffer_pool_wait_free",
    "read_ahead_pages.linear": "Innodb_buffer_pool_read_ahead",
    "read_ahead_pages.random": "Innodb_buffer_pool_read_ahead_rnd",
    "read_ahead_evicted_pages": "Innodb_buffer_pool_read_ahead_evicted",
    "doublewrite_pages": "Innodb_dblwr_pages_written",
    "redo_buffer_waits": "Innodb_log_waits",
    "row_lock_waits": "Innodb_row_lock_waits",
    "row_lock_current_waits": "Innodb_row_lock_current_waits",
    "checkpoint_age_max_bytes": "Innodb_checkpoint_max_age",
}
#: For each value, patterns in SHOW ENGINE INNODB STATUS; the matched numbers are summed.
_MONITOR: Final[Mapping[str, tuple[str, ...]]] = {
    "redo_written_bytes": (r"^Log sequence number\s+(\d+)",),
    "redo_flushed_bytes": (r"^Log flushed up to\s+(\d+)",),
    "redo_checkpoint_bytes": (r"^Last checkpoint at\s+(\d+)",),
    "history_list_length": (r"^History list length (\d+)",),
    "master_ticks": (r"(\d+) srv_active", r"(\d+) srv_idle", r"(\d+) 1_second", r"(\d+) background"),
    "buffer_pool_young_pages.young": (r"^Pages made young (\d+)",),
    "buffer_pool_young_pages.not_young": (r"^Pages made young \d+, not young (\d+)",),
    "spin_waits": (r"Mutex spin waits (\d+)", r"RW-shared spins (\d+)", r"RW-excl spins (\d+)"),
    "spin_rounds": (
        r"Mutex spin waits .*?rounds (\d+)",
        r"RW-shared spins.*?rounds (\d+)",
        r"RW-excl spins.*?rounds (\d+)",
    ),
    "spin_os_waits": (
        r"Mutex spin.*?OS waits (\d+)",
        r"RW-shared.*?OS waits (\d+)",
        r"RW-excl.*?OS waits (\d+)",
    ),
}
_VARIABLES: Final[Mapping[str, tuple[str, float]]] = {
    "connections_limit": ("max_connections", 1),
    "buffer_pool_dirty_limit_ratio": ("innodb_max_dirty_pages_pct", 0.01),
}

#: Values that never decrease.
COUNTERS: Final = frozenset(
    {
        "buffer_pool_pages_read", "buffer_pool_pages_written", "buffer_pool_reads", "free_block_waits",
        "read_ahead_pages.linear", "read_ahead_pages.random", "read_ahead_evicted_pages", "doublewrite_pages",
        "redo_buffer_waits", "row_lock_waits", "redo_written_bytes", "redo_flushed_bytes",
        "redo_checkpoint_bytes", "master_ticks", "spin_waits", "spin_rounds", "spin_os_waits",
        "buffer_pool_young_pages.young", "buffer_pool_young_pages.not_young",
    }
)  # fmt: skip


def by_sql(connection: Connection[Any]) -> dict[str, float]:
    """Return all values that this server reports over SQL."""
    status, variables, monitor = read_all(connection)
    found = {value: float(status[name]) for value, name in _STATUS.items() if name in status}
    for value, patterns in _MONITOR.items():
        numbers = [match for pattern in patterns for match in re.findall(pattern, monitor, re.MULTILINE)]
        if numbers:
            found[value] = float(sum(map(int, numbers)))
    for value, (name, scale) in _VARIABLES.items():
        found[value] = float(variables[name]) * scale
    return found


def read_all(connection: Connection[Any]) -> tuple[dict[str, str], dict[str, str], str]:
    """Return the output of SHOW GLOBAL STATUS, SHOW GLOBAL VARIABLES and SHOW ENGINE INNODB STATUS."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW GLOBAL STATUS")
        status = {str(name): str(value) for name, value in cursor.fetchall()}
        cursor.execute("SHOW GLOBAL VARIABLES")
        variables = {str(name): str(value) for name, value in cursor.fetchall()}
        cursor.execute("SHOW ENGINE INNODB STATUS")
        row = cursor.fetchone()
    return status, variables, str(row[2]) if row else ""
