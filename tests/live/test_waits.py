"""Threads of which we know what they wait for get that wait class."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from live import figures
from live.observe import PLANS, QUIET
from servers import NAMES
from workloads import WORKLOADS

if TYPE_CHECKING:
    from live.observe import Observatory

FLOOR = 0.95

#: What else a load makes its threads wait for, beyond what the load itself says.
ALSO = {
    "update_storm": {"opening_tables"},  # each statement opens its table, under a mutex
    "cpu": {"opening_tables", "table_lock"},
    # the rows were just written: who wants a free page writes one first
    "table_scan": {"doublewrite", "page_write", "fsync_data", "change_buffer_merge"},
}

#: The clients take each answer at once. MariaDB waits for its redo log where it is about to send one.
NEVER = {"network_send"}


@pytest.mark.parametrize("load", [load for load in PLANS if load != QUIET])
@pytest.mark.parametrize("name", NAMES)
def test_affected_threads_get_the_right_class(observatory: Observatory, name: str, load: str) -> None:
    """The floor holds on mariadb-10.11 too, whose InnoDB has no names: the SQL layer's exported functions
    around it, the system call and the file tell as much. What is inside InnoDB is told by the kind of sleep
    alone (a condition is a row lock, a bare futex a latch), so there its classes are coarser, not wrong.
    """
    seen = observatory.observe(name, load)

    kind = WORKLOADS[load]
    right = {kind.expected, *kind.also, *ALSO.get(load, ())} - NEVER
    total = seen.waits.total()
    good = sum(count for wait, count in seen.waits.items() if wait in right)
    classes = ", ".join(f"{wait} {count}" for wait, count in seen.waits.most_common())
    figures.record(
        "waits", f"{name}/{load}", f"{figures.share(good, total)} ({classes})",
        right=good, threads=total, classes=dict(seen.waits),
    )  # fmt: skip
    assert total >= seen.looks * PLANS[load].connections * 0.9
    assert seen.waits[kind.expected] > 0
    assert good >= FLOOR * total, seen.shown(set(seen.waits) - right)
