"""Must show 3, what the journal tells of a call when gdb fails, and what is done without a gdb."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from innoscope.toggles import engine
from innoscope.toggles.gdbway import GdbWriter
from innoscope.toggles.means import Means
from innoscope.toggles.model import ChangeFailed, Refused
from safety.command import assert_one_clear_error, innoscope
from safety.debugging import faulty_gdb
from safety.toggling import ACCOUNT, CONNECTIONS, Subject
from servers import Server, ensure_packages

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DEADLINE_S = 4.0


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    ensure_packages(["gdb"])
    with Server("mysql-5.6.24") as server:
        yield server


@pytest.fixture
def subject(running: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Subject:
    monkeypatch.setenv("INNOSCOPE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("INNOSCOPE_RUN", str(tmp_path / "run"))
    return Subject(running)


@pytest.mark.parametrize(
    ("moment", "deed", "outcome"),
    [
        ("before-attach", "hung", "not written"),
        ("after-attach", "hung", "not written"),
        ("after-attach", "killed", "not written"),
        ("before-detach", "killed", "done"),
        ("after-detach", "hung", "done"),
    ],
)
def test_the_journal_tells_what_became_of_the_call(
    subject: Subject, tmp_path: Path, moment: str, deed: str, outcome: str
) -> None:
    gdb = faulty_gdb(tmp_path, moment, deed)
    means = Means(writer=lambda _, target, __: GdbWriter(target, DEADLINE_S, gdb=gdb))
    plan = engine.plan(subject.target, "release_memory", "", account=ACCOUNT, means=means)
    assert 0 < plan.stall_s <= DEADLINE_S

    if outcome == "done":
        engine.apply(subject.target, plan, who="test", means=means)
    else:
        with pytest.raises(Refused, match="was not called") as refused:
            engine.apply(subject.target, plan, who="test", means=means)
        assert refused.value.remedy

    subject.assert_well()
    [entry] = subject.journal.entries()
    assert entry.outcome == outcome
    assert (entry.reason is None) == (outcome == "done")


def test_gdb_dies_at_the_very_moment_of_the_call(subject: Subject) -> None:
    """Nobody can say whether it was called: the journal says that it failed, not that it was not written."""
    means = Means(writer=lambda _, target, __: Unsure(target, DEADLINE_S))
    plan = engine.plan(subject.target, "release_memory", "", account=ACCOUNT, means=means)
    with pytest.raises(ChangeFailed, match="may have been called"):
        engine.apply(subject.target, plan, who="test", means=means)

    subject.assert_well()
    [entry] = subject.journal.entries()
    assert (entry.outcome, entry.may_be_in_force) == ("failed", False)


class Unsure(GdbWriter):
    """One whose gdb died between two of its words, a moment too short to be hit."""

    def write(self, step: object) -> None:
        super().write(step)  # type: ignore[arg-type]
        raise ChangeFailed("gdb ended at the very moment: it may have been called")


def test_without_gdb_calls_are_refused_and_memory_is_written(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    server = ("--yes", "--pid", subject.server.pid)
    before = subject.values(CONNECTIONS)
    result = innoscope("toggle", "set", "release_memory", *server)
    assert_one_clear_error(result, Refused.exit_code, "gdb is not installed")
    assert subject.journal.entries() == ()

    result = innoscope("toggle", "set", CONNECTIONS.toggle, CONNECTIONS.value, "--way", "memory", *server)
    assert result.returncode == 0, result.stderr
    assert subject.values(CONNECTIONS) == CONNECTIONS.after
    assert innoscope("toggle", "undo").returncode == 0
    assert subject.values(CONNECTIONS) == before
