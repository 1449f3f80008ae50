"""Kill `toggle` at every boundary of a change and of an undo, and at random moments.

Every time the server runs on untraced, the journal is right, and ``undo`` works from it. The random moments
are drawn from a fixed seed.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from innoscope.toggles import engine
from innoscope.toggles.model import Refused
from innoscope.toggles.undo import UNDO_FAULTS
from safety.toggling import ACCOUNT, CONNECTIONS, KILLS, READ_AHEAD, Subject, assert_true
from scale import count
from servers import Server
from workloads import Idle

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from safety.toggling import Change

SEED = 20261121
PATIENCE_S = 60
CHANGES = (READ_AHEAD, CONNECTIONS)
#: So that switching read-ahead off takes two writes.
BOTH = {"innodb_random_read_ahead": 1}
#: Fault points before the journal's intent: nothing was begun.
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
    """The fault points that a change with so many settings comes by."""
    numbers = range(len(change.variables))
    found: list[str] = []
    for name in names:
        found += [name.replace("-N", f"-{number}") for number in numbers] if name.endswith("-N") else [name]
    return found


def _chosen(found: list[str]) -> list[str]:
    """Return every fourth point in the quick suite: before the intent, at the write and at the result."""
    return found[:: count(quick=4, full=1)]


def died(process: subprocess.Popen[bytes]) -> bool:
    """Whether it was killed; a fault of its own fails the test."""
    said = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode in (0, -signal.SIGKILL), said.decode()
    return process.returncode == -signal.SIGKILL


def finish(subject: Subject) -> None:
    """Undo what there is to undo."""
    last = subject.last()
    if last is not None and last.may_be_in_force:
        subject.set_back()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.toggle)
def test_killed_at_every_boundary_of_a_change(subject: Subject, change: Change) -> None:
    before = subject.values(change)
    for point in _chosen(points(engine.FAULTS, change)):
        assert died(subject.set(change, point)), point
        subject.assert_well()
        assert_true(subject, change, before)
        if point in EARLY:
            assert subject.values(change) == before, point
        else:
            assert subject.set_back().outcome in ("undone", "not written"), point
        assert subject.values(change) == before, point
        assert not any(entry.may_be_in_force for entry in subject.journal.entries()), point


@pytest.mark.timeout(900)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.toggle)
def test_killed_at_every_boundary_of_an_undo(subject: Subject, change: Change) -> None:
    before = subject.values(change)
    for point in _chosen(points(UNDO_FAULTS, change)):
        assert not died(subject.set(change))
        assert subject.values(change) == change.after
        assert died(subject.undo(point)), point
        subject.assert_well()
        assert_true(subject, change, before)
        finish(subject)
        assert subject.values(change) == before, point
        last = subject.last()
        assert last is not None
        assert last.outcome == "undone", point


def begun(process: subprocess.Popen[bytes]) -> bool:
    """Wait until it is about to lock the server; False if it ended before."""
    assert process.stdout is not None
    return process.stdout.readline() == b"begins\n"


@dataclass(frozen=True)
class Takes:
    """Seconds of a change or an undo, from the start of its process and from its begin."""

    whole: float
    working: float


def _seconds(process: subprocess.Popen[bytes]) -> Takes:
    started = time.monotonic()
    assert begun(process)
    began = time.monotonic()
    assert not died(process)
    return Takes(time.monotonic() - started, time.monotonic() - began)


def _killed(process: subprocess.Popen[bytes], takes: Takes, number: int, draw: random.Random) -> bool:
    """Kill it at any moment of its life, or, three times of four, of its work on the server."""
    if number % 4 == 0:
        time.sleep(draw.uniform(0, takes.whole))
    elif begun(process):
        time.sleep(draw.uniform(0, takes.working))
    process.kill()
    return died(process)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.toggle)
def test_killed_at_random_moments(subject: Subject, change: Change) -> None:
    """Half of them while it changes, half while it undoes; those that had ended by then do not count."""
    before = subject.values(change)
    takes = {"set": _seconds(subject.set(change)), "undo": _seconds(subject.undo())}
    draw = random.Random(SEED)  # noqa: S311
    found: Counter[str] = Counter()
    slowest = 0.0
    for number in range(4 * KILLS):
        if found["killed"] >= KILLS // len(CHANGES):
            break
        what = "set" if number % 2 else "undo"
        if what == "undo":
            assert not died(subject.set(change))
        process = subject.set(change) if what == "set" else subject.undo()
        found["killed"] += _killed(process, takes[what], number // 2, draw)
        ended = time.monotonic()
        subject.assert_well()
        slowest = max(slowest, time.monotonic() - ended)
        assert_true(subject, change, before)
        found["unfinished"] += subject.journal.entries()[-1].outcome == "intended"
        finish(subject)
        assert subject.values(change) == before
    print(
        f"\n{change.toggle} by {change.way}: {found['killed']} killed, {found['unfinished']} of them between "
        f"intent and result; all set back; the server was well after {slowest:.2f} s at most"
    )

    assert found["killed"] >= KILLS // len(CHANGES)


def test_a_second_change_waits_for_nobody(subject: Subject) -> None:
    """Two at once: the second is refused while the first one is stopped in the middle of its work."""
    before = subject.values(READ_AHEAD)
    plan = engine.plan(subject.target, "read_ahead", "off", account=ACCOUNT)
    refused: list[str] = []

    def second(point: str) -> None:
        if point == "written-0":
            with pytest.raises(Refused) as caught:
                engine.apply(subject.target, plan, who="second", account=ACCOUNT)
            refused.append(caught.value.what)

    engine.apply(subject.target, plan, who="first", account=ACCOUNT, fault=second)

    assert str(os.getpid()) in refused[0]
    subject.set_back()
    assert subject.values(READ_AHEAD) == before
