"""`self-profile` accepts only Innoscope's own processes, and shows py-spy's output."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from innoscope.cli import main as cli_main
from innoscope.cli.py_spy import NotOurs, command_of, find, table
from innoscope.common.errors import NoTarget
from innoscope.target.proc import ProcFs

if TYPE_CHECKING:
    from pathlib import Path

FOLDED = ["main (a.py);work (b.py) 90", "main (a.py) 10"]
AGENT = ("python3", "/usr/bin/innoscope", "agent")


def process(root: Path, pid: int, executable: str, *words: str) -> None:
    folder = root / str(pid)
    folder.mkdir()
    (folder / "exe").symlink_to(executable)
    (folder / "cmdline").write_text("".join(f"{word}\0" for word in words))


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("python3", "/usr/bin/innoscope", "agent", "--check"), "agent"),
        (("python3", "-B", "/v/my env/bin/innoscope", "--debug", "sensor"), "sensor"),
        (("python3", "-P", "-m", "innoscope.cli.main", "sensor", "--socket", "/s"), "sensor"),
    ],
)
def test_own_process_is_recognized_by_its_command_line(
    words: tuple[str, ...], command: str, tmp_path: Path
) -> None:
    process(tmp_path, 7, "/usr/bin/python3.11", *words)

    assert command_of(7, ProcFs(tmp_path)) == command


@pytest.mark.parametrize(
    ("executable", "words"),
    [
        ("/usr/sbin/mysqld", AGENT),
        ("/usr/bin/python3", ("python3", "-m", "pytest", "innoscope", "agent")),
        ("/usr/bin/python3", ("python3", "/x/other.py", "innoscope", "agent")),
        ("/usr/bin/python3", ("python3", "-c", "innoscope", "agent")),
        ("/usr/bin/python3", ("python3", "/usr/bin/innoscope")),
        ("/usr/bin/python3", ("python3",)),
    ],
)
def test_other_program_is_refused(executable: str, words: tuple[str, ...], tmp_path: Path) -> None:
    process(tmp_path, 7, executable, *words)

    with pytest.raises(NotOurs) as refused:
        command_of(7, ProcFs(tmp_path))
    assert "innoscope stacks --pid 7" in (refused.value.remedy or "")
    with pytest.raises(NoTarget, match="agent to profile: found none"):
        find("agent", ProcFs(tmp_path))


def test_single_agent_is_the_default_and_several_need_a_choice(tmp_path: Path) -> None:
    process(tmp_path, 7, "/usr/bin/python3", *AGENT)
    process(tmp_path, 9, "/usr/bin/python3", "python3", "/usr/bin/innoscope", "sensor")
    assert find("agent", ProcFs(tmp_path)) == 7
    assert find("sensor", ProcFs(tmp_path)) == 9
    process(tmp_path, 8, "/usr/bin/python3", *AGENT)
    with pytest.raises(NoTarget, match="7, 8") as refused:
        find("agent", ProcFs(tmp_path))
    assert "--pid PID" in (refused.value.remedy or "")


def test_table_has_shares_of_all_samples() -> None:
    first, _, heading, *rows = table("agent, pid 7", FOLDED)

    assert first == "agent, pid 7: 100 samples"
    assert heading.split() == ["own", "total", "function"]
    assert [row.split(maxsplit=2) for row in rows] == [
        ["90.0%", "90.0%", "work (b.py)"],
        ["10.0%", "100.0%", "main (a.py)"],
    ]


def test_idle_process_gets_a_hint() -> None:
    assert table("agent, pid 7", []) == ["agent, pid 7: no thread ran; to include waiting threads: --idle"]


@pytest.mark.parametrize("words", [("--pid", "1", "--sensor"), ("--format", "svg"), ("--seconds", "0")])
def test_invalid_options_are_refused(words: tuple[str, ...]) -> None:
    assert cli_main.main(["self-profile", *words]) == 2


@pytest.fixture
def agent_7(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory for a fake py-spy, beside a fake /proc whose only process is an agent."""
    (tmp_path / "proc").mkdir()
    process(tmp_path / "proc", 7, "/usr/bin/python3", *AGENT)
    monkeypatch.setattr("innoscope.cli.commands.selfprofile.ProcFs", lambda: ProcFs(tmp_path / "proc"))
    return tmp_path


def fake_py_spy(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = folder / "py-spy"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr("innoscope.cli.py_spy.shutil.which", lambda *_, **__: str(program))


def test_missing_py_spy_is_named_with_its_remedy(
    agent_7: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    del agent_7
    monkeypatch.setattr("innoscope.cli.py_spy.shutil.which", lambda *_, **__: None)

    assert cli_main.main(["self-profile"]) == 1
    errors = capsys.readouterr().err
    assert "py-spy is not installed" in errors
    assert "-m pip install py-spy" in errors


#: A fake py-spy, which writes its arguments to the output file that its last argument names.
_ARGUMENTS = 'words="$*"; for output; do :; done; printf "%s\\n" "$words" > "$output"'


@pytest.mark.parametrize("native", [False, True])
def test_process_is_paused_only_for_native_frames(
    native: bool, agent_7: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_py_spy(agent_7, monkeypatch, _ARGUMENTS)

    assert cli_main.main(["self-profile", "--format", "raw", *(["--native"] if native else [])]) == 0
    words = capsys.readouterr().out.split()
    assert ("--native" in words, "--nonblocking" in words) == (native, not native)
    assert words[words.index("--pid") + 1] == "7"


@pytest.mark.parametrize("form", ["text", "raw"])
def test_no_control_characters_reach_the_terminal(
    form: str, agent_7: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = 'for output; do :; done; printf "\\033[2Jevil (x.py) 3\\n" > "$output"'
    fake_py_spy(agent_7, monkeypatch, script)

    assert cli_main.main(["self-profile", "--format", form]) == 0
    output = capsys.readouterr().out
    assert "\\x1b[2Jevil (x.py)" in output
    assert "\x1b" not in output


def test_failure_of_py_spy_is_reported_without_its_backtrace(
    agent_7: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_py_spy(agent_7, monkeypatch, 'printf "Error: it\\nCaused by: that\\nStack backtrace: x" >&2; exit 1')

    assert cli_main.main(["self-profile"]) == 1
    errors = capsys.readouterr().err
    assert "py-spy failed on process 7: Error: it Caused by: that" in errors
    assert "backtrace" not in errors
    assert "sudo innoscope self-profile --pid 7 --idle" in errors
