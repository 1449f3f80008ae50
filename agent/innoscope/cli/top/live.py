"""``innoscope top`` on a terminal: one snapshot per interval in a worker thread, never two at a time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message

from innoscope.cli.top.frame import FoldedSnapshot
from innoscope.cli.top.lines import clock
from innoscope.cli.top.live_snapshots import LiveSnapshots, OwnCost, SnapshotResult
from innoscope.cli.top.view import StacksApp
from innoscope.common.errors import InnoscopeError, NoSuchProcess

if TYPE_CHECKING:
    from textual.timer import Timer


class SnapshotTaken(Message):
    """Sent when a snapshot is complete or has failed."""

    def __init__(self, result: SnapshotResult | InnoscopeError) -> None:
        super().__init__()
        self.result = result


class TopApp(StacksApp):
    """The live view. If ``duration_s`` is set, the view exits after this many seconds."""

    TITLE = "innoscope top"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("space", "freeze", "Freeze", priority=True)]
    FOOT: ClassVar[str] = "⏎ open  space freeze  s sort  f class  / find  i idle  n notes  ? help  q quit"
    KEYS: ClassVar[tuple[str, ...]] = ("space           freeze the view, or resume; snapshots continue",)

    def __init__(self, live: LiveSnapshots, *, interval_s: float, duration_s: float | None = None) -> None:
        super().__init__()
        self._live = live
        self._interval_s = interval_s
        self._duration_s = duration_s
        self._cost = OwnCost()
        self._percent = self._cost.mark()
        self._busy = False
        self._timer: Timer | None = None
        self._newest: FoldedSnapshot | None = None
        self._result: SnapshotResult | None = None
        self._failure: str | None = None
        self.late = 0
        self.frozen = False
        self.ended_at: float | None = None

    def on_mount(self) -> None:
        """Take the first snapshot immediately, then one per interval."""
        self._timer = self.set_interval(self._interval_s, self._tick)
        self._tick()
        if self._duration_s is not None:
            self.set_timer(self._duration_s, self.exit)

    def _tick(self) -> None:
        if self._busy:
            self.late += 1
            self.draw_head()
            return
        self._busy = True
        self.run_worker(self._take, thread=True, exit_on_error=True)

    def _take(self) -> None:
        """Take a snapshot in a worker thread, and send the result as a message."""
        result: SnapshotResult | InnoscopeError
        try:
            result = self._live.take()
        except InnoscopeError as error:
            result = error
        self.post_message(SnapshotTaken(result))

    def on_snapshot_taken(self, message: SnapshotTaken) -> None:
        """Show a snapshot, or the error if it failed."""
        self._busy = False
        self._percent = self._cost.mark()
        if isinstance(message.result, InnoscopeError):
            self._missed(message.result)
            return
        self._failure = None
        self._result = message.result
        snapshot = message.result.snapshot
        self.history.add(snapshot.taken_at, snapshot.waits)
        self._newest = FoldedSnapshot(snapshot, self._newest)
        if self.frozen:
            self.draw_head()
        else:
            self.show(self._newest)

    def _missed(self, error: InnoscopeError) -> None:
        self._failure = error.in_one_line
        if isinstance(error, NoSuchProcess):
            self.ended_at = time.time()
            if self._timer:
                self._timer.stop()
        self.draw_head()

    def action_freeze(self) -> None:
        """Freeze the view, or resume with the newest snapshot."""
        self.frozen = not self.frozen
        if not self.frozen and self._newest:
            self.folded = self._newest
        self.draw()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable freezing (space bar) while a filter is being typed: the filter may contain spaces."""
        typing = self.focused is not None and self.focused.id == "filter"
        return not (action == "freeze" and typing)

    def status(self) -> str:
        """Return the interval, the number of late snapshots, and Innoscope's own CPU use."""
        cost = "–" if self._percent is None else f"{self._percent:.1f} %"
        late = f"{self.late:,} late" if self.late else "none late"
        words = [f"every {self._interval_s:g} s, {late}", f"own CPU {cost}"]
        if recorder := self._live.recorder:
            words.append(f"{recorder.snapshots:,} recorded")
        return " · ".join(words)

    def messages(self) -> list[str]:
        """Return the messages about the server's exit, failures and a frozen view, then the first note."""
        texts = []
        if self.ended_at is not None:
            ended = f"THE SERVER EXITED at {clock(self.ended_at)}; this is the last snapshot; q quits"
            texts.append(f"{ended}. {self._failure}")
        elif self._failure:
            texts.append(f"SNAPSHOT FAILED: {self._failure}; retrying")
        if self.frozen:
            texts.append("FROZEN: space resumes")
        if self._result:
            texts += filter(None, (self._result.record_problem, self._result.sql_problem))
        if self.folded and (notes := self.folded.snapshot.notes):
            more = f" (+{len(notes) - 1}, n shows all)" if len(notes) > 1 else ""
            texts.append(f"note{more}: {notes[0]}")
        return texts
