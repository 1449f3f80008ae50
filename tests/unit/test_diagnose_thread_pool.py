"""A thread pool without a free thread is a finding only if a statement or login is waiting for one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from innoscope.diagnose.evidence import MissingSource
from innoscope.diagnose.verdict import judge
from unit.evidence import evidence, names

if TYPE_CHECKING:
    from collections.abc import Mapping

SLEEPING = {"user_sleep": 4}
WITH_A_FREE_THREAD = {"user_sleep": 3, "background_idle": 1}
POOL = {"thread_pool_threads": 4}
UNANSWERED = {"missing": {"sql": MissingSource("timeout", "no answer")}}
REFUSED = {"missing": {"sql": MissingSource("refused", "Access denied")}}


def queued(statements: int) -> dict[str, Any]:
    groups = ({"group": "0", "threads": "4", "queued": str(statements)},)
    variables = ({"name": "thread_pool_max_threads", "value": "4"},)
    return {"answers": {"thread_pool": groups, "variables": variables}}


@pytest.mark.parametrize(
    ("threads", "readings", "more", "found"),
    [
        (SLEEPING, POOL, UNANSWERED, ["thread_pool_stuck"]),
        (SLEEPING, POOL, queued(2), ["thread_pool_stuck"]),
        (SLEEPING, POOL, queued(0), []),
        (SLEEPING, POOL, REFUSED, []),
        (WITH_A_FREE_THREAD, POOL, UNANSWERED, []),
        (SLEEPING, {"thread_pool_threads": 0}, UNANSWERED, []),
    ],
    ids=[
        "no answer to a login",
        "queued statements",
        "nothing is queued",
        "a refused login is an answer",
        "a free thread",
        "no thread pool",
    ],
)
def test_thread_pool(
    threads: dict[str, int], readings: dict[str, float], more: Mapping[str, Any], found: list[str]
) -> None:
    assert names(judge(evidence(threads, readings, **more))) == found


def test_queue_and_limit_are_evidence() -> None:
    [found] = judge(evidence(SLEEPING, POOL, **queued(8))).findings
    assert "thread_pool_max_threads is 4" in found.evidence
    assert "queued statements and logins: 8" in found.evidence
