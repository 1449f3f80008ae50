"""Which processes are ours, and what folded stacks say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from innoscope.cli import main as cli_main
from innoscope.errors import InnoscopeError, NoSuchProcess
from innoscope.selfprofile import folded, ours, pyspy
from innoscope.target.proc import ProcFs

if TYPE_CHECKING:
    from pathlib import Path

RAW = b"""main (a.py:1);work (b.py:7) 30
main (a.py:1);work (b.py:8) 60
main (a.py:2) 10
not a line
"""


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


def test_missing_py_spy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("innoscope.selfprofile.pyspy.shutil.which", lambda *_, **__: None)
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
