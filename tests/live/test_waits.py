"""Threads get the right wait class under loads whose waits are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from live.observe import PLANS, QUIET
from scale import long
from servers import ADDED, NAMES
from workloads import WORKLOADS

if TYPE_CHECKING:
    from live.observe import Observatory

FLOOR = 0.95

#: Wait classes that a load causes in addition to those that it declares.
ALSO = {
    "update_storm": {"opening_tables"},  # each statement opens its table while it holds a mutex
    "cpu": {"opening_tables", "table_lock"},
    # the rows were just written, so a thread that needs a free page must first write a dirty page
    "table_scan": {"doublewrite", "page_write", "fsync_data", "change_buffer_merge"},
}

#: Classes that never occur, because clients read each reply at once. MariaDB flushes redo before it replies.
NEVER = {"network_send"}


#: The expected class on servers that differ from the others. From 8.0.22 to 8.3, by default only dedicated
#: threads write and flush the redo log (innodb_log_writer_threads), and all other threads wait for them.
INSTEAD = {("mysql-8.0.31", "fsync"): "redo_write_wait"}

#: InnoDB of 10.5 also waits for latches on condition variables, and its functions have no names. Therefore
#: some waits for page latches are classified as row locks.
COARSE = pytest.mark.xfail(reason="hidden names: waits for page latches look like row locks", strict=False)


def _marks(name: str, load: str) -> list[pytest.MarkDecorator]:
    marks = [long("like the neighbouring versions")] if name in ADDED and load != "row_lock" else []
    return [*marks, COARSE] if (name, load) == ("mariadb-10.5", "table_scan") else marks


OBSERVED = [
    pytest.param(name, load, marks=_marks(name, load))
    for name in (*NAMES, *ADDED)
    for load in PLANS
    if load != QUIET
]


@pytest.mark.parametrize(("name", "load"), OBSERVED)
def test_affected_threads_get_the_right_wait_class(observatory: Observatory, name: str, load: str) -> None:
    """Check that the minimum share also holds on mariadb-10.11, whose InnoDB functions have no names.

    On that server, the class follows from the exported functions of the SQL layer, the system call and the
    file. Inside InnoDB, only the kind of sleep is known (a condition variable is a row lock, a bare futex a
    latch), so these classes are coarser, but not wrong.
    """
    seen = observatory.observe(name, load)

    kind = WORKLOADS[load]
    expected = INSTEAD.get((name, load), kind.expected)
    right = {expected, *kind.also, *ALSO.get(load, ())} - NEVER
    total = seen.waits.total()
    good = sum(count for wait, count in seen.waits.items() if wait in right)
    assert total >= seen.snapshots * PLANS[load].connections * 0.9
    assert seen.waits[expected] > 0
    assert good >= FLOOR * total, seen.shown(set(seen.waits) - right)
