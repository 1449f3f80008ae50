"""Test that at least 99.5 % of the threads that are not on a CPU are unwound to their root."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from innoscope.sampling.model import Trust
from live.observe import PLANS
from scale import long
from servers import ADDED, NAMES

if TYPE_CHECKING:
    from live.observe import Observatory

FLOOR = 0.995
#: In the quick suite, the server ONE runs all loads except LAST, which needs its own server. The others run
#: only LOADS, and the servers in ADDED only ``row_lock``.
ONE, LAST, LOADS = "mysql-5.6.24", "table_scan", ("idle", "row_lock")


def _quick(name: str, load: str) -> bool:
    if name in ADDED:
        return load == "row_lock"
    return load in LOADS or (name == ONE and load != LAST)


OBSERVED = [
    pytest.param(name, load, marks=() if _quick(name, load) else long("one server has other loads"))
    for name in (*NAMES, *ADDED)
    for load in PLANS
]


@pytest.mark.parametrize(("name", "load"), OBSERVED)
def test_threads_at_rest_reach_their_root(observatory: Observatory, name: str, load: str) -> None:
    """Ignore io_uring workers, which are kernel threads without a user-space stack."""
    seen = observatory.observe(name, load)

    exact, at_rest = seen.at_rest[Trust.EXACT], seen.at_rest.total()
    assert at_rest >= seen.snapshots * PLANS[load].connections // 2
    assert exact >= FLOOR * at_rest, seen.shown(set(seen.at_rest) - {Trust.EXACT})


@pytest.mark.parametrize(("name", "load"), OBSERVED)
def test_complete_stacks_end_at_a_thread_start(observatory: Observatory, name: str, load: str) -> None:
    seen = observatory.observe(name, load)

    assert not seen.rootless, "\n".join(f"{count}× {text}" for text, count in seen.rootless.items())
