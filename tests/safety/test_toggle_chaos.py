"""Test that no change is lost if `toggle` is killed between any two steps, or at a random time.

The server must keep running and must not be traced, and ``undo`` must be able to use the journal. The random
times come from a fixed seed.
"""

from __future__ import annotations

import random
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from innoscope.toggles import engine
from innoscope.toggles.undo import UNDO_FAULTS
from safety.toggle_subject import CONNECTIONS, KILLS, READ_AHEAD, Subject, assert_journal_matches
from scale import count
from servers import Server
from workloads import Idle

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from safety.toggle_subject import Change

SEED = 20261121
PATIENCE_S = 60
CHANGES = (READ_AHEAD, CONNECTIONS)
#: With this option, switching read-ahead off needs two writes.
BOTH = {"innodb_random_read_ahead": 1}
#: Fault points before the intent to make the change is journaled.
EARLY = engine.FAULTS[: engine.FAULTS.index("intended")]


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with Server("mysql-5.6.24", options=BOTH) as server, Idle(server, 50):
        yield server


@pytest.fixture
def subject(running: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Subject:
    monkeypatch.setenv("INNOSCOPE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("INNOSCOPE_RUN", str(tmp_path / "run"))
    return Subject(running)


def points(names: tuple[str, ...], change: Change) -> list[str]:
    """Return the fault points of a change; names with the suffix -N yield one point per setting."""
    numbers = range(len(change.variables))
    found: list[str] = []
    for name in names:
        found += [name.replace("-N", f"-{number}") for number in numbers] if name.endswith("-N") else [name]
    return found


def _chosen(found: list[str]) -> list[str]:
    """Return only every fourth fault point in the quick suite, and all of them in the full suite."""
    return found[:: count(quick=4, full=1)]


def died(process: subprocess.Popen[bytes]) -> bool:
    """Wait for the process and return whether it was killed. Fail if it exited with any other error."""
    errors = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode in (0, -signal.SIGKILL), errors.decode()
    return process.returncode == -signal.SIGKILL


def finish(subject: Subject) -> None:
    """Undo the last change if it may be in force."""
    last = subject.last()
    if last is not None and last.may_be_in_force:
        subject.undo_here()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.toggle)
def test_a_change_can_be_killed_at_every_boundary(subject: Subject, change: Change) -> None:
    before = subject.values(change)
    for point in _chosen(points(engine.FAULTS, change)):
        assert died(subject.set(change, point)), point
        subject.assert_well()
        assert_journal_matches(subject, change, before)
        if point in EARLY:
            assert subject.values(change) == before, point
        else:
            assert subject.undo_here().outcome in ("undone", "not written"), point
        assert subject.values(change) == before, point
        assert not any(entry.may_be_in_force for entry in subject.journal.entries()), point


@pytest.mark.timeout(900)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.toggle)
def test_an_undo_can_be_killed_at_every_boundary(subject: Subject, change: Change) -> None:
    before = subject.values(change)
    for point in _chosen(points(UNDO_FAULTS, change)):
        assert not died(subject.set(change))
        assert subject.values(change) == change.after
        assert died(subject.undo(point)), point
        subject.assert_well()
        assert_journal_matches(subject, change, before)
        finish(subject)
        assert subject.values(change) == before, point
        last = subject.last()
        assert last is not None
        assert last.outcome == "undone", point


def begun(process: subprocess.Popen[bytes]) -> bool:
    """Wait until the process is about to lock the server. Return False if it exits earlier."""
    assert process.stdout is not None
    return process.stdout.readline() == b"begins\n"


@dataclass(frozen=True)
class Takes:
    """Seconds until a change or undo ends.

    ``whole`` is measured from the start of the process, and ``working`` from the start of the change itself.
    """

    whole: float
    working: float


def _seconds(process: subprocess.Popen[bytes]) -> Takes:
    started = time.monotonic()
    assert begun(process)
    began = time.monotonic()
    assert not died(process)
    return Takes(time.monotonic() - started, time.monotonic() - began)


def _killed(process: subprocess.Popen[bytes], takes: Takes, number: int, draw: random.Random) -> bool:
    """Kill the process at a random time, in three of four cases while it changes the server."""
    if number % 4 == 0:
        time.sleep(draw.uniform(0, takes.whole))
    elif begun(process):
        time.sleep(draw.uniform(0, takes.working))
    process.kill()
    return died(process)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.toggle)
def test_changes_and_undos_can_be_killed_at_random_moments(subject: Subject, change: Change) -> None:
    """Kill changes and undos alternately. Processes that end before the kill do not count."""
    before = subject.values(change)
    takes = {"set": _seconds(subject.set(change)), "undo": _seconds(subject.undo())}
    draw = random.Random(SEED)  # noqa: S311
    killed = 0
    for number in range(4 * KILLS):
        if killed >= KILLS // len(CHANGES):
            break
        what = "set" if number % 2 else "undo"
        if what == "undo":
            assert not died(subject.set(change))
        process = subject.set(change) if what == "set" else subject.undo()
        killed += _killed(process, takes[what], number // 2, draw)
        subject.assert_well()
        assert_journal_matches(subject, change, before)
        finish(subject)
        assert subject.values(change) == before
    assert killed >= KILLS // len(CHANGES)
