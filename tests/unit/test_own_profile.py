"""Which processes are ours, what folded stacks say, what is kept, and when the budget is passed."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from innoscope.agent.config import Own
from innoscope.agent.ownprofile import CpuBudget, OwnProfile
from innoscope.cli import main as cli_main
from innoscope.collectors.own import OwnProfiles
from innoscope.doctor.host import Host
from innoscope.doctor.model import Status
from innoscope.doctor.own import own_profile
from innoscope.errors import BadFile, InnoscopeError, NoSuchProcess
from innoscope.selfprofile import folded, kept, ours, pyspy
from innoscope.target.proc import ProcFs

if TYPE_CHECKING:
    from pathlib import Path

RAW = b"""main (a.py:1);work (b.py:7) 30
main (a.py:1);work (b.py:8) 60
main (a.py:2) 10
not a line
"""
WHY = kept.Why(1_700_000_000, 42, "1.0", 0.87, 0.05, 60, 10)


def process(root: Path, pid: int, executable: str, *words: str) -> None:
    folder = root / str(pid)
    folder.mkdir()
    (folder / "exe").symlink_to(executable)
    (folder / "cmdline").write_text("".join(f"{word}\0" for word in words))
    (folder / "stat").write_text(f"{pid} ({words[0].rpartition('/')[2]}) S {' '.join(['1'] * 30)}")


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("python3", "/usr/bin/innoscope", "agent", "--check"), "agent"),
        (("python3", "-B", "-X", "dev", "/v/bin/innoscope", "--debug", "sensor"), "sensor"),
        (("python3", "-m", "innoscope.cli.main", "top"), "top"),
        (("python3", "-m", "pytest", "innoscope", "agent"), None),
        (("python3", "/x/other.py", "innoscope", "agent"), None),
        (("python3", "-c", "innoscope", "agent"), None),
        (("python3",), None),
    ],
)
def test_what_runs_there(words: tuple[str, ...], command: str | None, tmp_path: Path) -> None:
    process(tmp_path, 7, "/usr/bin/python3.11", *words)

    assert ours.command_of(ProcFs(tmp_path), 7) == command


def test_no_other_program_is_ours_whatever_it_calls_itself(tmp_path: Path) -> None:
    process(tmp_path, 7, "/usr/sbin/mysqld", "python3", "/usr/bin/innoscope", "agent")

    with pytest.raises(ours.NotOurs):
        ours.find("agent", 7, ProcFs(tmp_path))
    with pytest.raises(NoSuchProcess, match="no innoscope agent runs"):
        ours.find("agent", None, ProcFs(tmp_path))


def test_the_only_one_is_meant_and_of_several_none(tmp_path: Path) -> None:
    process(tmp_path, 7, "/usr/bin/python3", "python3", "/usr/bin/innoscope", "agent")
    assert ours.find("agent", None, ProcFs(tmp_path)) == ours.Ours(7, "agent")
    process(tmp_path, 8, "/usr/bin/python3", "python3", "/usr/bin/innoscope", "agent")
    with pytest.raises(NoSuchProcess, match="7, 8") as refused:
        ours.find("agent", None, ProcFs(tmp_path))
    assert "--pid" in (refused.value.remedy or "")


def test_functions_are_added_up_over_their_lines() -> None:
    stacks = folded.parse(RAW)
    first, second = folded.functions(stacks)

    assert (first.name, first.own, first.total) == ("work (b.py)", 90, 90)
    assert (second.name, second.own, second.total) == ("main (a.py)", 10, 100)
    assert list(folded.table(stacks, 1))[1].split() == ["90.0%", "90.0%", "work", "(b.py)"]


def test_the_rarest_stacks_become_one() -> None:
    few = folded.most(folded.parse(RAW), 2)

    assert sum(few.values()) == 100
    assert few["[rare stacks]",] == 40


def test_what_is_kept_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INNOSCOPE_RUN", str(tmp_path))
    kept.write(folded.parse(RAW), WHY)
    kept.write(folded.parse(RAW), WHY)
    found = kept.read(kept.path())

    assert found == kept.Kept(WHY, 100, (("work (b.py)", 0.9), ("main (a.py)", 0.1)))
    assert [file.name for file in kept.folder().iterdir()] == [kept.path().name]


def test_it_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INNOSCOPE_RUN", str(tmp_path))
    many: folded.Stacks = {
        (f"{'f' * 100}{number} (x.py:{number})",) * 50: number + 1 for number in range(20_000)
    }
    kept.write(many, WHY)
    found = kept.read(kept.path())

    assert kept.path().stat().st_size <= kept.MOST_BYTES
    assert found is not None
    assert found.samples == sum(many.values())


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"{}", b'{"innoscope": 1}', b'{"innoscope": {"schema": 2}}', b"\xff",
        b"[" * 100_000, b" " * (kept.MOST_BYTES + 1),
    ],
)  # fmt: skip
def test_what_is_damaged_is_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "kept"
    file.write_bytes(content)
    with pytest.raises(BadFile):
        kept.read(file)


def test_neither_links_nor_pipes_are_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(BadFile):
            kept.read(tmp_path / name)
    assert kept.read(tmp_path / "none") is None


def test_no_control_characters_reach_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INNOSCOPE_RUN", str(tmp_path))
    kept.write({("\x1b[2Jevil (x.py:1)",): 1}, WHY)
    found = kept.read(kept.path())

    assert found is not None
    assert found.top[0][0].isprintable()


def test_the_doctor_tells_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"INNOSCOPE_RUN": "/run/i"}
    host = Host(tmp_path, environment)
    assert own_profile(host).status is Status.OK
    monkeypatch.setenv("INNOSCOPE_RUN", str(tmp_path / "run/i"))
    kept.write(folded.parse(RAW), WHY)
    check = own_profile(host)

    assert check.status is Status.WARN
    for words in (
        "pid 42",
        "87.0% of a core over 60 s, 5.0% are allowed",
        "work (b.py) 90%",
        kept.path().name,
    ):
        assert words in check.detail
    kept.path().write_text("{}")
    assert own_profile(host).remedy == f"rm {kept.path()}"


def test_the_doctor_says_when_there_is_no_profiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("innoscope.selfprofile.pyspy.shutil.which", lambda *_, **__: None)
    check = own_profile(Host(tmp_path, {}))

    assert check.status is Status.WARN
    assert "py-spy is not installed" in check.detail
    assert "pip install py-spy" in (check.remedy or "")
    with pytest.raises(InnoscopeError, match="not installed"):
        pyspy.record(pyspy.Order(1, 1))


@pytest.mark.parametrize("words", [("--pid", "1", "--sensor"), ("--socket", "/x"), ("--format", "svg")])
def test_options_that_contradict_each_other(words: tuple[str, ...]) -> None:
    assert cli_main.main(["self-profile", *words]) == 2


def test_it_does_not_pause_the_process_unless_it_must() -> None:
    assert "--nonblocking" in pyspy._arguments(pyspy.Order(1, 1))
    native = pyspy._arguments(pyspy.Order(1, 1, native=True))
    assert "--native" in native
    assert "--nonblocking" not in native


class Machine:
    """A clock, and CPU time used on it."""

    def __init__(self) -> None:
        self.now, self.used = 1000.0, 50.0
        self.budget = CpuBudget(0.05, 60, used=lambda: self.used, clock=lambda: self.now)

    def passes(self, seconds: float, share: float) -> list[Any]:
        found = []
        for _ in range(int(seconds / 5)):
            self.now += 5
            self.used += 5 * share
            found.append(self.budget.passed())
        return found


class Profile:
    """The agent's, with a budget that is passed whenever we say so; what it would take is counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passes: float | None = None
        self.takes = 0
        self.counts = OwnProfiles()
        monkeypatch.setattr(CpuBudget, "passed", lambda _: self.passes)
        monkeypatch.setattr(OwnProfile, "_take", lambda *_: self._take())
        self.own = OwnProfile(Own(), self.counts)

    def _take(self) -> None:
        self.takes += 1

    def beat(self, passes: float | None) -> int:
        """How many were taken until after this beat."""
        self.passes = passes
        self.own.beat()
        for thread in threading.enumerate():
            if thread.name == "self-profile":
                thread.join()
        return self.takes


def test_it_is_taken_once_in_a_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INNOSCOPE_RUN", str(tmp_path))
    profile = Profile(monkeypatch)

    assert profile.beat(0.9) == 0  # not begun
    profile.own.begin()
    assert [profile.beat(passes) for passes in (None, 0.9, None, 0.9)] == [0, 1, 1, 1]


def test_a_fresh_one_of_an_earlier_life_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("INNOSCOPE_RUN", str(tmp_path))
    kept.write(folded.parse(RAW), WHY)
    profile = Profile(monkeypatch)
    profile.own.begin()

    assert [profile.beat(0.9), profile.beat(0.9)] == [0, 0]
    assert [record.message for record in caplog.records] == ["CPU budget passed again"]
    long_ago = time.time() - 2 * kept.FRESH_S
    os.utime(kept.path(), (long_ago, long_ago))
    assert profile.beat(0.9) == 1


def test_why_there_is_none_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("INNOSCOPE_RUN", str(tmp_path))
    monkeypatch.setattr("innoscope.selfprofile.pyspy.shutil.which", lambda *_, **__: None)
    counts = OwnProfiles()
    OwnProfile(Own(), counts)._take(0.9)

    assert (counts.taken, counts.failed) == (0, 1)
    assert "py-spy is not installed" in str(vars(caplog.records[0])["reason"])


def test_what_was_used_before_does_not_count() -> None:
    assert Machine().budget.passed() is None


def test_the_budget_may_be_used_up() -> None:
    assert not any(Machine().passes(600, 0.0499))


def test_a_hog_is_seen_before_the_window_is_over_and_a_burst_is_forgotten() -> None:
    machine = Machine()
    machine.budget.passed()
    assert machine.passes(5, 1) == [pytest.approx(5 / 60)]
    told = machine.passes(120, 0)
    assert told[0] is not None
    assert told[-1] is None


def test_a_beat_that_came_late_counts_over_its_time() -> None:
    machine = Machine()
    machine.budget.passed()
    machine.now += 600
    machine.used += 20
    assert machine.budget.passed() is None
