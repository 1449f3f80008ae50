"""Threads whose wait is known get the right wait class."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from live.observe import PLANS, QUIET
from servers import NAMES
from workloads import WORKLOADS

if TYPE_CHECKING:
    from live.observe import Observatory

FLOOR = 0.95

#: Wait classes that a load causes in addition to those that it declares.
ALSO = {
    "update_storm": {"opening_tables"},  # each statement opens its table, under a mutex
    "cpu": {"opening_tables", "table_lock"},
    # the rows were just written, so a thread that needs a free page writes one first
    "table_scan": {"doublewrite", "page_write", "fsync_data", "change_buffer_merge"},
}

#: Not observed, because clients read each reply at once. MariaDB waits for its redo log before it replies.
NEVER = {"network_send"}


@pytest.mark.parametrize("load", [load for load in PLANS if load != QUIET])
@pytest.mark.parametrize("name", NAMES)
def test_affected_threads_get_the_right_wait_class(observatory: Observatory, name: str, load: str) -> None:
    """The floor also holds on mariadb-10.11, whose InnoDB has no names.

    There the class follows from the exported functions of the SQL layer, the system call and the file. Inside
    InnoDB only the kind of sleep is known (a condition is a row lock, a bare futex a latch), so these classes
    are coarser, but not wrong.
    """
    seen = observatory.observe(name, load)

    kind = WORKLOADS[load]
    right = {kind.expected, *kind.also, *ALSO.get(load, ())} - NEVER
    total = seen.waits.total()
    good = sum(count for wait, count in seen.waits.items() if wait in right)
    assert total >= seen.snapshots * PLANS[load].connections * 0.9
    assert seen.waits[kind.expected] > 0
    assert good >= FLOOR * total, seen.shown(set(seen.waits) - right)
