"""Test that threads get the correct wait class under loads whose waits are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from live.observe import PLANS
from live.wait_truth import LOADS, SUBJECTS, exists, expected, right, tally
from scale import long
from servers import ADDED, NAMES

if TYPE_CHECKING:
    from live.observe import Observatory

FLOOR = 0.995

#: In MariaDB 10.5, InnoDB also uses condition variables to wait for latches, and its functions have no
#: symbols. Therefore some waits for page latches are classified as row locks. A share between this value and
#: FLOOR is reported as a known miss (measured: 97.7 to 99.5 % and 77.3 to 84.6 %); a smaller one fails.
COARSE = {("mariadb-10.5", "fsync"): 0.95, ("mariadb-10.5", "table_scan"): 0.7}


def _marks(subject: str, load: str) -> list[pytest.MarkDecorator]:
    quick = subject in NAMES or (load == "row_lock" and subject in ADDED)
    return [] if quick else [long("the other versions behave in the same way")]


OBSERVED = [
    pytest.param(subject, load, marks=_marks(subject, load))
    for subject in SUBJECTS
    for load in LOADS
    if exists(subject, load)
]


@pytest.mark.parametrize(("subject", "load"), OBSERVED)
def test_affected_threads_get_the_right_wait_class(observatory: Observatory, subject: str, load: str) -> None:
    """Check that at least FLOOR of the affected threads get a correct wait class.

    This includes mariadb-10.11, whose InnoDB functions have no symbols.

    On that server, the class follows from the exported functions of the SQL layer, the system call and the
    file. Inside InnoDB, only the kind of sleep is known (a condition variable means a row lock, a bare
    futex a latch), so these classes are coarser, but not wrong.
    """
    seen = observatory.observe(subject, load)

    counted = tally(seen, subject, load)
    assert counted.total >= seen.snapshots * PLANS[load].connections * 0.9
    assert seen.waits[expected(subject, load)] > 0, seen.waits
    if COARSE.get((subject, load), FLOOR) <= counted.share < FLOOR:
        pytest.xfail(f"stripped: waits for page latches look like row locks ({counted.share:.1%} right)")
    assert counted.share >= FLOOR, seen.shown(set(seen.waits) - right(subject, load))
