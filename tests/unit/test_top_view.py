"""Test the live view with keys and synthetic snapshots, with SQL and with recording."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
from textual.widgets import Static

from innoscope.cli.top import headless
from innoscope.cli.top.detail import TextScreen
from innoscope.cli.top.listing import Listing
from innoscope.cli.top.live import TopApp
from innoscope.cli.top.live_snapshots import LiveSnapshots
from innoscope.cli.top.statements import QueryFeed
from innoscope.common.errors import BadFile, InnoscopeError, NoSuchProcess, SqlFailed
from innoscope.sampling.model import Frame, Snapshot, Thread, Trust
from innoscope.sampling.recording import Recording, RecordingWriter
from innoscope.target.model import Query
from unit.snapshots import target

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from textual.pilot import Pilot

    from innoscope.cli.top.view import StacksApp

IDLE = (Frame("poll", "libc.so.6", 1), Frame("my_net_read", "mysqld", 2))
LOCK = (Frame("lock_wait_suspend_thread", "mysqld", 3), Frame("row_upd", "mysqld", 4))
SQL = {tid: Query(tid, "app", "web1", "shop", "Query", "updating", 1, "UPDATE t1") for tid in range(100, 110)}


class FakeSource:
    """A source that first raises ``errors``, then returns 20 idle threads and 10 waiting for row locks."""

    def __init__(self, *errors: InnoscopeError | None, slow_s: float = 0.0) -> None:
        self.snapshots = 0
        self.at_once = 0
        self.overlapped = False
        self._errors = list(errors)
        self._slow_s = slow_s

    def take_snapshot(self) -> Snapshot:
        self.at_once += 1
        self.overlapped |= self.at_once > 1
        time.sleep(self._slow_s)
        self.at_once -= 1
        self.snapshots += 1
        error = self._errors.pop(0) if self._errors else None
        if error:
            raise error
        idle = [Thread(tid, tid, "mysqld", "S", Trust.EXACT, "idle", IDLE) for tid in range(20)]
        locks = [Thread(tid, tid, "mysqld", "S", Trust.EXACT, "row_lock", LOCK) for tid in range(100, 110)]
        return Snapshot(target(), "bpf", time.time(), 4.8, (*idle, *locks), ("names are missing", "and more"))


def app_of(source: FakeSource, *, interval_s: float = 60.0, feed: QueryFeed | None = None) -> TopApp:
    return TopApp(LiveSnapshots(source, feed=feed, patience_s=60), interval_s=interval_s)


def text(app: StacksApp, selector: str) -> str:
    return str(app.screen_stack[0].query_one(selector, Static).render())


def lines(app: StacksApp, selector: str) -> list[str]:
    listing = app.screen_stack[0].query_one(selector, Listing)
    return [line for item in listing.items for line in item.lines]


async def wait_for(pilot: Pilot[None], condition: Callable[[], bool]) -> None:
    """Wait until the condition is true; allow 20 s, because test machines can be slow."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "the condition was never met"
        await pilot.pause(0.02)


async def until(pilot: Pilot[None], words: str, app: StacksApp, selector: str) -> None:
    await wait_for(pilot, lambda: words in text(app, selector))


@pytest.mark.asyncio
async def test_the_view_shows_headline_classes_and_stacks() -> None:
    app = app_of(FakeSource())
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "30 threads in 4.8 ms · bpf, not stopped", app, "#head")
        assert "30 exact · every 60 s, none late · own CPU" in text(app, "#trust")
        assert "note (+1, n shows all): names are missing" in text(app, "#messages")
        idle, lock = lines(app, "#waits")
        assert idle.split()[:2] == ["idle", "20"]
        assert lock.split()[:3] == ["row", "lock", "10"]
        assert lines(app, "#stacks")[1].rstrip().endswith("lock_wait_suspend_thread ← row_upd")


@pytest.mark.asyncio
@pytest.mark.parametrize("size", [(80, 24), (160, 50), (40, 10), (300, 90)], ids=str)
async def test_the_view_fits_the_terminal(size: tuple[int, int]) -> None:
    app = app_of(FakeSource())
    async with app.run_test(size=size) as pilot:
        await until(pilot, "4242", app, "#head")
        for selector in ("#waits", "#stacks"):
            assert max(map(len, lines(app, selector))) <= size[0] - 2
            assert not app.query_one(selector, Listing).show_horizontal_scrollbar
        assert app.query_one("#stacks", Listing).size.height >= 1
        assert app.query_one("#foot").region.y == size[1] - 1


@pytest.mark.asyncio
async def test_the_view_follows_a_resized_terminal() -> None:
    app = app_of(FakeSource())
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "4242", app, "#head")
        await pilot.resize_terminal(140, 40)
        await wait_for(pilot, lambda: max(map(len, lines(app, "#stacks"))) == 137)


@pytest.mark.asyncio
async def test_filters_by_idle_class_and_text_can_be_cleared() -> None:
    app = app_of(FakeSource())
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, "4242", app, "#head")
        await pilot.press("i")
        assert [line.split()[0] for line in lines(app, "#stacks")] == ["10"]
        await pilot.press("i", "down", "f")
        assert [line.split()[0] for line in lines(app, "#stacks")] == ["10"]
        assert "shown: class row lock (Esc: all)" in text(app, "#messages")
        await pilot.press("escape")
        assert len(lines(app, "#stacks")) == 2
        await pilot.press("slash", *"net", "space", "q")
        assert lines(app, "#stacks") == ["no stack matches; Esc shows all"]
        await pilot.press("backspace", "backspace", "enter")
        assert [line.split()[0] for line in lines(app, "#stacks")] == ["20"]
        assert "text “net”" in text(app, "#messages")
        await pilot.press("escape")
        assert len(lines(app, "#stacks")) == 2


@pytest.mark.asyncio
async def test_enter_on_a_class_shows_only_that_class() -> None:
    app = app_of(FakeSource())
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, "4242", app, "#head")
        await pilot.press("shift+tab", "down", "enter")
        assert [line.split()[0] for line in lines(app, "#stacks")] == ["10"]
        assert lines(app, "#waits")[1].startswith("▸ row lock")  # marked by a symbol, not only by color
        await pilot.press("enter")
        assert len(lines(app, "#stacks")) == 2


@pytest.mark.asyncio
async def test_a_key_changes_the_sort_order() -> None:
    app = app_of(FakeSource())
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, "4242", app, "#head")
        assert "by threads" in text(app, "#stacks-head")
        await pilot.press("s", "s", "s")
        assert "by function" in text(app, "#stacks-head")
        assert "lock_wait" in lines(app, "#stacks")[0]


@pytest.mark.asyncio
async def test_a_stack_opens_a_page_that_keys_close() -> None:
    app = app_of(FakeSource(), feed=QueryFeed(lambda: SQL))
    async with app.run_test(size=(100, 50)) as pilot:
        await until(pilot, "4242", app, "#head")
        assert lines(app, "#stacks")[2].split() == ["└", "10×", "UPDATE", "t1"]
        await pilot.press("down", "enter")
        assert isinstance(app.screen, TextScreen)
        page = str(app.screen.query_one("VerticalScroll Static", Static).render())
        assert "   0  lock_wait_suspend_thread (mysqld+0x3)" in page
        assert "    10×  UPDATE t1" in page
        assert "#109 app@web1 db shop Query 1 s [updating]" in page
        await pilot.press("escape")
        assert not isinstance(app.screen, TextScreen)
        for key in ("question_mark", "n"):
            await pilot.press(key)
            assert isinstance(app.screen, TextScreen)
            await pilot.press("q")
        assert app.is_running


@pytest.mark.asyncio
async def test_a_frozen_view_still_takes_snapshots() -> None:
    source = FakeSource()
    app = app_of(source, interval_s=0.05)
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, "4242", app, "#head")
        await pilot.press("space")
        held, snapshots = app.folded, source.snapshots
        await wait_for(pilot, lambda: source.snapshots > snapshots + 2)
        assert app.folded is held
        assert "FROZEN" in text(app, "#messages")
        await pilot.press("space")
        assert app.folded is not held


@pytest.mark.asyncio
async def test_snapshots_never_overlap_and_late_ones_are_counted() -> None:
    source = FakeSource(slow_s=0.3)
    app = app_of(source, interval_s=0.1)
    async with app.run_test(size=(100, 30)) as pilot:
        await wait_for(pilot, lambda: app.late >= 4 and source.snapshots >= 3)
        assert not source.overlapped
        await wait_for(pilot, lambda: f"{app.late} late" in text(app, "#trust"))


@pytest.mark.asyncio
async def test_the_last_snapshot_stays_after_the_server_ended() -> None:
    source = FakeSource(None, NoSuchProcess("process 4242 ended", remedy="innoscope targets"))
    app = app_of(source, interval_s=0.1)
    async with app.run_test(size=(120, 30)) as pilot:
        await until(pilot, "THE SERVER EXITED", app, "#messages")
        assert "process 4242 ended (innoscope targets)" in text(app, "#messages")
        assert len(lines(app, "#stacks")) == 2
        await pilot.pause(0.4)
        assert source.snapshots == 2
        await pilot.press("q")
    assert app.return_code == 0


@pytest.mark.asyncio
async def test_a_failed_snapshot_is_reported_and_repeated() -> None:
    seen = threading.Event()

    class Waiting(FakeSource):
        """A source whose third snapshot waits until the test has seen the failure of the second one."""

        def take_snapshot(self) -> Snapshot:
            if self.snapshots == 2:
                seen.wait(30)
            return super().take_snapshot()

    app = app_of(Waiting(None, InnoscopeError("the kernel is busy")), interval_s=0.2)
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, "SNAPSHOT FAILED: the kernel is busy", app, "#messages")
        await until(pilot, "note", app, "#messages")
        seen.set()
        await wait_for(pilot, lambda: "SNAPSHOT FAILED" not in text(app, "#messages"))


@pytest.mark.asyncio
async def test_an_unexpected_error_ends_the_view_and_is_raised() -> None:
    class Broken(FakeSource):
        def take_snapshot(self) -> Snapshot:
            raise ZeroDivisionError("oops")

    app = app_of(Broken())
    with pytest.raises(Exception, match="oops"):
        async with app.run_test() as pilot:
            await wait_for(pilot, lambda: not app.is_running)


def failing() -> Mapping[int, Query]:
    raise SqlFailed("access denied for nobody", remedy="GRANT PROCESS")


def odd() -> Mapping[int, Query]:
    raise ValueError("odd")


@pytest.mark.parametrize(
    ("query", "words"),
    [(failing, "access denied for nobody (GRANT PROCESS)"), (odd, "no statements: ValueError: odd")],
    ids=["known error", "unexpected error"],
)
def test_an_sql_error_is_shown_with_the_snapshot(query: object, words: str) -> None:
    live = LiveSnapshots(FakeSource(), feed=QueryFeed(query), patience_s=60)  # type: ignore[arg-type]
    result = live.take()
    assert result.sql_problem == words
    assert len(result.snapshot.threads) == 30


def test_hanging_sql_does_not_delay_the_snapshot() -> None:
    hold = threading.Event()

    def hang() -> Mapping[int, Query]:
        hold.wait(30)
        return SQL

    now = 1_000.0
    live = LiveSnapshots(FakeSource(), feed=QueryFeed(hang, clock=lambda: now), patience_s=0.05)
    try:
        took = []
        for _ in range(5):
            begun = time.monotonic()
            live.take()
            took.append(time.monotonic() - begun)
        assert min(took) < 0.4
        assert sum(took) < 20
        now += 1.1
        assert live.take().sql_problem == "the server has not answered SQL queries for 1 s"
    finally:
        hold.set()


def test_a_failed_query_is_not_repeated_at_once() -> None:
    attempts = []

    def query() -> Mapping[int, Query]:
        attempts.append(1)
        raise SqlFailed("no")

    live = LiveSnapshots(FakeSource(), feed=QueryFeed(query, retry_s=30), patience_s=1)
    for _ in range(5):
        live.take()
    assert len(attempts) == 1


def test_a_failed_recorder_stops_only_the_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = RecordingWriter(tmp_path / "a.rec", interval_s=1)
    live = LiveSnapshots(FakeSource(), recorder=recorder)
    live.take()

    def full(_: Snapshot) -> None:
        raise BadFile("cannot write a.rec: No space left on device")

    monkeypatch.setattr(recorder, "write", full)
    for _ in range(2):
        problem = live.take().record_problem
        assert problem == "recording stopped after 1 snapshots: cannot write a.rec: No space left on device"


def test_recording_needs_no_terminal(tmp_path: Path) -> None:
    messages: list[str] = []
    with RecordingWriter(tmp_path / "a.rec.gz", interval_s=0.02) as recorder:
        snapshots = headless.record(
            LiveSnapshots(FakeSource(), recorder=recorder),
            interval_s=0.02,
            duration_s=0.2,
            say=messages.append,
        )
    assert 1 <= snapshots <= 10
    assert len(Recording(tmp_path / "a.rec.gz")) == snapshots
    assert messages[0] in ("names are missing", "and more")
    assert messages[-1].startswith(f"{snapshots} snapshots recorded")


def test_recording_ends_with_the_server(tmp_path: Path) -> None:
    messages: list[str] = []
    source = FakeSource(None, None, NoSuchProcess("process 4242 ended"))
    with RecordingWriter(tmp_path / "a.rec", interval_s=0.1) as recorder:
        snapshots = headless.record(
            LiveSnapshots(source, recorder=recorder), interval_s=0.1, duration_s=None, say=messages.append
        )
    assert snapshots == 2
    assert "the server exited: process 4242 ended" in messages
