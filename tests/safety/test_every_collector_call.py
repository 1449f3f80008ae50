"""Make every call of the collectors and of their runner fail once.

The calls are found while the collectors run, also for the first time and after a failure. A call that fails
may make its own collector fail, but no other one. Afterwards, all collectors must succeed again.

Each call fails with an OSError, a NativeError, a MemoryError and a panic of the Rust core. In
test_collector_faults.py, some of the calls fail repeatedly. test_every_governor_call.py does the same for the
probe collector.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from safety.call_sites import CallSites, Problems, call_in_thread
from safety.collector_scene import WITHIN_S, open_scene, shorten_pauses
from safety.injecting import ERRORS, Fault
from safety.well import assert_well
from scale import long
from servers import Server
from waiting import until
from workloads import Fsync

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.common.samples import Outcome
    from safety.call_sites import Site
    from safety.collector_scene import Scene

pytestmark = [
    long("test_collector_faults.py makes some of the calls fail"),
    pytest.mark.timeout(1800),
    # A failing call may end a thread.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]

#: All modules of the collectors except those that only read a catalog, and those that the agent calls itself
#: at a scrape (own, toggles, crosscheck).
_FILES: Final = tuple(
    f"metrics/collectors/{name}.py"
    for name in (
        "derived", "errors", "kinds", "memory", "monitor", "process", "runner", "snapshot_budget", "sql",
        "sql_failures", "sql_plan", "state", "waits",
    )
)  # fmt: skip
#: Number of snapshots during which calls are recorded.
_RUNS: Final = 10
#: Collectors whose first run makes other calls.
_FIRST: Final = ("sql", "waits", "memory", "state")
#: Calls that fail once, so that the collector handles the failure: COLLECTOR, object and name.
_FAILURES: Final = (
    ("process", "_cpu", "add"), ("waits", "_source", "take_snapshot"), ("memory", "reader", "read"),
    ("sql", "_session", "samples"), ("state", "_connection", "cursor"),
)  # fmt: skip
#: Threads of jobs of a collector that are not named after it.
_OWNERS: Final = {"snapshots": "waits"}


class _Cause(NamedTuple):
    """What makes a collector repeat a call: forgetting its first run, or a failure of another call."""

    forget: str = ""
    failure: tuple[str, str, str] | None = None


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("mysql-5.6.24") as server, Fsync(server, 4):
        yield server
        assert_well(server)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pauses(monkeypatch)


def _find(sites: CallSites, scene: Scene) -> dict[Site, _Cause]:
    """Run the collectors, and return all calls that they make."""
    sites.take_found()
    _run(scene, _RUNS)
    found = dict.fromkeys(sites.take_found(), _Cause())
    for name in _FIRST:
        scene.forget(name)
        _run(scene, 2)
        found = dict.fromkeys(sites.take_found(), _Cause(forget=name)) | found
    for failure in _FAILURES:
        with pytest.MonkeyPatch.context() as monkeypatch:
            fault = _inject(scene, failure, monkeypatch)
            until(partial(_runs_into, scene, fault), within_s=WITHIN_S)
        _run(scene, 1)
        found = dict.fromkeys(sites.take_found(), _Cause(failure=failure)) | found
    return found


def _run(scene: Scene, snapshots: int) -> None:
    """Run all collectors until they succeed, and this number of snapshots has been taken."""
    tally = scene.collectors["waits"]._tally
    last = tally.snapshots + snapshots
    until(lambda: call_in_thread(scene.succeeds) and tally.snapshots >= last)


def _inject(scene: Scene, failure: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch) -> Fault:
    """Make a call fail once. The runner logs this, even if it has logged an equal failure before."""
    for run in (*scene.watched._runner._runs, *scene.agent._runs):
        run._logged.clear()
    name, where, call = failure
    owner = getattr(scene.collectors[name], where)
    fault = Fault(getattr(owner, call))
    monkeypatch.setattr(owner, call, fault)
    fault.once = True
    fault.arm(ERRORS["OSError"])
    return fault


def _runs_into(scene: Scene, fault: Fault) -> bool:
    call_in_thread(scene.run)
    return fault.failed_at is not None


def test_any_failing_call_affects_no_other_collector(server: Server) -> None:
    problems = Problems()
    with CallSites(_FILES) as sites, ExitStack() as stack:
        scene = stack.enter_context(open_scene(server))
        found = _find(sites, scene)
        sites.finding = False
        for site, error in product(sorted(found), ERRORS):
            with problems.noting(site, error):
                _fail(scene, sites, site, error, found[site], problems)
                continue
            stack.close()  # a collector may be stuck
            scene = stack.enter_context(open_scene(server))
    problems.check(len(found))


def _fail(scene: Scene, sites: CallSites, site: Site, error: str, cause: _Cause, problems: Problems) -> None:
    """Make a call fail. Check that no other collector fails, and that all succeed afterwards."""
    reasons: dict[str, str] = {}

    def run() -> None:
        outcomes: dict[str, Outcome] = call_in_thread(scene.run) or {}
        reasons.update({name: one.reason for name, one in outcomes.items() if one.reason is not None})

    with pytest.MonkeyPatch.context() as monkeypatch:
        sites.arm(site, ERRORS[error])
        if cause.failure is not None:
            _inject(scene, cause.failure, monkeypatch)
        if cause.forget:
            scene.forget(cause.forget)
        made = problems.made(sites, site, run)
    until(lambda: call_in_thread(scene.succeeds), lambda: f"{scene.run()}"[:200], within_s=WITHIN_S)
    if made:
        thread = sites.failed_in or ""
        own = {_OWNERS.get(thread, thread)} | ({cause.failure[0]} if cause.failure else set())
        assert reasons.keys() <= own, f"in {thread}: {reasons}"
