"""Test failures of each call that the collectors of the sensor and the agent make.

A collector whose call fails must report the error, and succeed again afterwards. No other collector may fail.
Each call fails with an OSError, a NativeError, a MemoryError and a panic of the Rust core. In `make test`,
some of the calls fail, each with only one of these errors, in rotation. test_governor_faults.py does the same
for the probe collector.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest

from innoscope.memory import layout, numbers, plan
from innoscope.memory import reader as reading
from innoscope.metrics.collectors import derived, process, sql_plan, state, waits
from innoscope.metrics.collectors import sql as sql_collector
from safety.collector_scene import WITHIN_S, Scene, open_scene, shorten_pauses
from safety.injecting import ERRORS, Fault, rotated
from safety.well import assert_well
from scale import few
from servers import Server
from waiting import until
from workloads import Fsync

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Calls as COLLECTOR.OBJECT.NAME. Each of them is made at each run of the collector, or after ``_forget``.
_CALLS: Final = (
    "process.module._read", "process.module._fields", "process.module._thread_ids",
    "process.module._thread_cpu", "process.module._open_files", "process.collector._kinds",
    "process.cpu.add",
    "waits.module.open_engine", "waits.module.default_kinds", "waits.module.is_busy",
    "waits.source.take_snapshot", "waits.engine.take_snapshot", "waits.engine._threads",
    "waits.collector._on_snapshot", "waits.collector._on_threads", "waits.collector._on_kinds",
    "waits.tally.add", "waits.tally.samples", "waits.profiles.add",
    "memory.reader.read", "memory.module.still_same", "memory.numbers.read_elements", "memory.layout.learn",
    "memory.plan.make", "memory.derived.plain", "memory.derived.derive",
    "sql.collector._connect", "sql.session._rows", "sql.session._status", "sql.session._make_plan",
    "sql.plan.make", "sql.module.derive",
    "state.collector._connect", "state.collector._query", "state.collector._waiting", "state.module.samples",
    "sensor.client.collect",
)  # fmt: skip
#: Calls that `make test` makes fail: those that read a process, take snapshots or use a connection.
_QUICK: Final = (
    "process.module._read", "process.module._thread_cpu", "waits.module.open_engine",
    "waits.engine.take_snapshot", "waits.collector._on_threads", "memory.numbers.read_elements",
    "memory.layout.learn", "sql.collector._connect", "sql.session._rows", "state.collector._query",
    "sensor.client.collect",
)  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("mysql-5.6.24") as server, Fsync(server, 4):
        yield server
        assert_well(server)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pauses(monkeypatch)


@pytest.fixture
def scene(server: Server) -> Iterator[Scene]:
    with open_scene(server) as scene:
        yield scene


def _owner(scene: Scene, call: str) -> Any:
    name, place, _ = call.split(".")
    collector = scene.collectors[name]
    owners: dict[str, Callable[[], Any]] = {
        "collector": lambda: collector,
        "module": lambda: {
            "process": process, "waits": waits, "memory": reading, "sql": sql_collector, "state": state,
        }[name],
        "cpu": lambda: collector._cpu,
        "source": lambda: collector._source,
        "engine": lambda: collector._source._engine,
        "tally": lambda: collector._tally,
        "profiles": lambda: collector._profiles,
        "reader": lambda: collector.reader,
        "numbers": lambda: numbers, "layout": lambda: layout, "derived": lambda: derived,
        "plan": lambda: plan if name == "memory" else sql_plan,
        "session": lambda: collector._session,
        "client": lambda: collector._sensor,
    }  # fmt: skip
    return owners[place]()


def _forget(scene: Scene, call: str) -> None:
    """Make the collector repeat the calls that it makes only at its first run, or for a new thread."""
    name, _, function = call.split(".")
    collector = scene.collectors[name]
    if function == "open_engine":
        collector._source = None
    elif function == "default_kinds":
        collector._seen.clear()
    elif function in ("learn", "make") and name == "memory":
        collector.reader._plan = None
    elif function == "_connect":
        collector.close()
    elif function in ("make", "_make_plan"):
        collector._session._plan = None


@pytest.mark.timeout(300)
@pytest.mark.parametrize("call", few(_CALLS, *_QUICK, reason="the calls of _QUICK fail in the same ways"))
def test_a_failing_call_is_reported_and_affects_no_other_collector(
    scene: Scene, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, _, function = call.split(".")
    for error in rotated(_CALLS.index(call)):
        until(lambda: scene.collectors["waits"]._source is not None)
        with monkeypatch.context() as patch:
            owner = _owner(scene, call)
            fault = Fault(getattr(owner, function))
            patch.setattr(owner, function, fault)
            fault.arm(ERRORS[error])
            _forget(scene, call)
            until(partial(_is_reported, scene, name, error), scene.run, within_s=WITHIN_S)
        until(scene.succeeds, scene.run, within_s=WITHIN_S)


def _is_reported(scene: Scene, name: str, error: str) -> bool:
    """Return whether the collector fails with the error. Fail if another collector fails."""
    outcomes = scene.run()
    others = {one: outcome.reason for one, outcome in outcomes.items() if one != name}
    assert not any(others.values()), others
    return error in (outcomes[name].reason or "")
