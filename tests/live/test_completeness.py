"""Of the threads that are not on a CPU, 99.5 % and more are shown up to their root."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from innoscope.sampling.model import Trust
from live import figures
from live.observe import PLANS
from scale import long
from servers import NAMES

if TYPE_CHECKING:
    from live.observe import Observation, Observatory

FLOOR = 0.995
#: In the quick suite, one server has all loads but the last, which needs a server of its own; the others two.
ONE, LAST, LOADS = "mysql-5.6.24", "table_scan", ("idle", "row_lock")


def _quick(name: str, load: str) -> bool:
    return load in LOADS or (name == ONE and load != LAST)


OBSERVED = [
    pytest.param(name, load, marks=() if _quick(name, load) else long("one server has other loads"))
    for name in NAMES
    for load in PLANS
]


@pytest.mark.parametrize(("name", "load"), OBSERVED)
def test_threads_at_rest_reach_their_root(observatory: Observatory, name: str, load: str) -> None:
    """Left out are io_uring's workers, which are the kernel's and have no stack in user space."""
    seen = observatory.observe(name, load)

    exact, at_rest = seen.at_rest[Trust.EXACT], seen.at_rest.total()
    figures.record(
        "completeness", f"{name}/{load}",
        f"{figures.share(exact, at_rest)} in {seen.looks} looks{_others(seen)}",
        exact=exact, at_rest=at_rest, looks=seen.looks, running=seen.running.total(),
        kernel_threads=seen.kernel_threads,
    )  # fmt: skip
    assert at_rest >= seen.looks * PLANS[load].connections // 2
    assert exact >= FLOOR * at_rest, seen.shown(set(seen.at_rest) - {Trust.EXACT})


@pytest.mark.parametrize(("name", "load"), OBSERVED)
def test_what_is_shown_as_complete_begins_where_threads_begin(
    observatory: Observatory, name: str, load: str
) -> None:
    seen = observatory.observe(name, load)

    assert not seen.rootless, "\n".join(f"{count}× {text}" for text, count in seen.rootless.items())


def _others(seen: Observation) -> str:
    parts = [f"{count} {trust}" for trust, count in seen.at_rest.items() if trust is not Trust.EXACT]
    parts += [f"{seen.running.total()} on a CPU"] if seen.running else []
    parts += [f"{seen.kernel_threads} io_uring workers"] if seen.kernel_threads else []
    return "; " + ", ".join(parts) if parts else ""
