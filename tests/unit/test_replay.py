"""Test the player's clock, times on the command line, the display of a recording, and the command itself."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner
from textual.widgets import Static

from innoscope.cli.commands.replay import command
from innoscope.cli.main import main
from innoscope.cli.top.player import Player, position
from innoscope.cli.top.replay import ReplayApp
from innoscope.common.errors import InnoscopeError
from innoscope.sampling.model import Frame, Snapshot, Thread, Trust
from innoscope.sampling.recording import Recording, RecordingWriter
from innoscope.target.model import Query
from unit.snapshots import target

if TYPE_CHECKING:
    from pathlib import Path

TARGET = target(
    flavour="mariadb", version=(11, 4, 5), version_text="11.4.5", socket=None, executable="/usr/sbin/mariadbd"
)
IDLE = (Frame("poll", "libc.so.6", 1), Frame("do_command", "mariadbd", 2))
LOCK = (Frame("lock_wait", "mariadbd", 3),)
START = datetime(2026, 1, 31, 23, 59, 30).astimezone().timestamp()  # 30 s before midnight, local time
SNAPSHOTS = 60


def snapshot(number: int) -> Snapshot:
    query = Query(5, "app", "web1", "shop", "Query", "", 1, "UPDATE t1")
    idle = [Thread(tid, tid, "m", "S", Trust.EXACT, "idle", IDLE) for tid in range(20)]
    locks = [
        Thread(tid, tid, "m", "S", Trust.EXACT, "row_lock", LOCK, None, query)
        for tid in range(50, 50 + number)
    ]
    return Snapshot(TARGET, "bpf", START + number, 4.8, (*idle, *locks))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("replay") / "a.rec.gz"
    with RecordingWriter(path, interval_s=1) as recorder:
        for number in range(SNAPSHOTS):
            recorder.write(snapshot(number))
    return path


@pytest.fixture(scope="module")
def recording(path: Path) -> Recording:
    return Recording(path)


def test_playing_runs_to_the_end_and_stops(recording: Recording) -> None:
    player = Player(recording)
    player.advance(2.5)
    assert (player.index, player.playing) == (2, True)
    player.faster(2)
    assert player.speed == 5
    player.advance(4)
    assert player.index == 22
    player.advance(1000)
    assert (player.index, player.at_end, player.playing) == (SNAPSHOTS - 1, True, False)
    player.toggle()
    assert (player.index, player.playing) == (0, True)


def test_steps_and_jumps_stay_within_the_recording(recording: Recording) -> None:
    player = Player(recording)
    player.step(-1)
    assert (player.index, player.playing) == (0, False)
    player.step(3)
    player.seek(player.moment + 10)
    assert player.index == 13
    player.seek(player.moment - 1000)
    assert player.index == 0
    player.step(1000)
    assert player.at_end
    for steps, speed in ((100, 60), (-100, 0.25)):
        player.faster(steps)
        assert player.speed == speed


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("+10", 10),
        ("+10s", 10),
        ("-5", 54),
        ("-250ms", 58.75),
        ("-0.5m", 29),
        ("+0.01h", 36),
        ("23:59:45", 15),
        ("23:59", 0),
        ("00:00", 30),
        ("0:00:05.5", 35.5),
        ("2026-02-01T00:00:10", 40),
    ],
)
def test_times_are_relative_or_on_the_recorded_day(text: str, seconds: float) -> None:
    assert position(text, START, START + 59) == pytest.approx(START + seconds)


@pytest.mark.parametrize("text", ["03:00", "2020-01-01", "+3600", "+1h", "-1h", "23:57"])
def test_times_outside_the_recording_are_refused(text: str) -> None:
    with pytest.raises(InnoscopeError) as caught:
        position(text, START, START + 59)
    assert caught.value.remedy


@pytest.mark.parametrize("text", ["soon", "25:00", "12:61", "", "+", "-", "+5w", "99999999-01-01"])
def test_a_malformed_time_is_a_usage_error(path: Path, text: str) -> None:
    result = CliRunner().invoke(command, [str(path), "--at", text], standalone_mode=False)
    assert isinstance(result.exception, click.UsageError)
    assert "is not a time: use 14:05" in result.exception.format_message()


def status(app: ReplayApp) -> str:
    return str(app.screen_stack[0].query_one("#trust", Static).render())


@pytest.mark.asyncio
async def test_keys_pause_step_seek_and_change_the_speed(recording: Recording) -> None:
    app = ReplayApp(Player(recording))
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        await pilot.press("space")
        assert "‖ paused 1×" in status(app)
        app._player.seek(START)
        await pilot.press("right", "right", "left", "right_square_bracket")
        assert "snapshot 12 of 60" in status(app)
        assert app.folded is not None
        assert app.folded.snapshot == snapshot(11)
        assert {row.wait: row.change for row in app.folded.rows} == {"idle": 0, "row_lock": 1}
        await pilot.press("left_square_bracket", "plus", "plus", "minus")
        assert "paused 2× · snapshot 2 of 60" in status(app)
        app._player.seek(START + 58.5)
        await pilot.press("space")
        for _ in range(500):
            await pilot.pause(0.02)
            if "■ END" in status(app):
                break
        assert "■ END" in status(app)
        await pilot.press("space")
        assert "▶ playing" in status(app)


@pytest.mark.asyncio
async def test_keys_in_the_filter_are_text(recording: Recording) -> None:
    app = ReplayApp(Player(recording, START + 30))
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.press("space", "slash", "a", "space", "minus", "left", "b", "enter")
        assert app.choice.text == "a b-"
        assert "paused 1×" in status(app)


@pytest.mark.asyncio
async def test_a_damaged_snapshot_is_reported(tmp_path: Path) -> None:
    plain = tmp_path / "a.rec"
    with RecordingWriter(plain, interval_s=1) as recorder:
        for number in range(3):
            recorder.write(snapshot(number))
    rows = plain.read_bytes().splitlines(keepends=True)
    rows[2] = rows[2].replace(b'"exact"', b'"sure"')
    plain.write_bytes(b"".join(rows))
    player = Player(Recording(plain))
    player.playing = False
    app = ReplayApp(player)
    async with app.run_test(size=(160, 30)) as pilot:
        await pilot.press("right")
        await pilot.pause()
        messages = str(app.screen_stack[0].query_one("#messages", Static).render())
        assert "THIS SNAPSHOT CANNOT BE SHOWN" in messages
        assert "line 3" in messages
        await pilot.press("right")
        assert app.folded is not None


def test_without_a_terminal_a_summary_is_printed(path: Path) -> None:
    result = CliRunner().invoke(command, [str(path)], standalone_mode=False)
    assert result.exception is None
    text = result.output
    assert "MariaDB 11.4.5 pid 4242, 2026-01-31 23:59:30 to 2026-02-01 00:00:29" in text
    assert "60 snapshots, one every 1.0 s, longest gap 1.0 s" in text
    idle = next(line for line in text.splitlines() if line.startswith("idle"))
    lock = next(line for line in text.splitlines() if line.startswith("row lock"))
    assert idle.split()[1:4] == ["20.0", "20.0", "20"]
    assert lock.split()[2:] == ["29.5", "29.5", "59", "00:00:29"]
    assert "     29.5 UPDATE t1" in text


def test_without_a_terminal_a_given_snapshot_is_printed(path: Path) -> None:
    result = CliRunner().invoke(command, [str(path), "--at", "00:00:10"], standalone_mode=False)
    assert result.exception is None
    assert "snapshot 41 of 60 · 60 exact" in result.output
    assert "     40     +1 row lock" in result.output


def test_an_empty_recording_has_exit_code_9(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty.rec"
    with RecordingWriter(empty, interval_s=1):
        pass
    other = tmp_path / "other"
    other.write_text("hello\n")
    for arguments, words in (
        ([str(empty)], "contains no snapshot"),
        ([str(other)], "not an Innoscope recording"),
        ([str(tmp_path / "absent")], "No such file"),
    ):
        assert main(["replay", *arguments]) == 9
        assert words in capsys.readouterr().err
    assert main(["replay", str(empty)]) == 9
    assert "contains no snapshot" in capsys.readouterr().err


def test_top_needs_a_terminal_or_a_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["top"]) == 2
    assert "needs a terminal" in capsys.readouterr().err
