"""``innoscope replay`` on a terminal: show a recording in the live view."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType

from innoscope.cli.top.frame import FoldedSnapshot
from innoscope.cli.top.history import SPAN_S, WaitHistory
from innoscope.cli.top.lines import clock
from innoscope.cli.top.view import StacksApp
from innoscope.common.errors import BadFile

if TYPE_CHECKING:
    from innoscope.cli.top.player import Player

TICK_S = 0.1
_NOT_WHILE_TYPING = frozenset({"play", "step", "jump", "speed"})


class ReplayApp(StacksApp):
    """The live view, showing a recording."""

    TITLE = "innoscope replay"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "play", "Play", priority=True),
        Binding("left", "step(-1)", "Step back", priority=True),
        Binding("right", "step(1)", "Step on", priority=True),
        Binding("left_square_bracket,shift+left", "jump(-10)", "10 s back", priority=True),
        Binding("right_square_bracket,shift+right", "jump(10)", "10 s on", priority=True),
        Binding("plus,equals_sign", "speed(1)", "Faster", priority=True),
        Binding("minus", "speed(-1)", "Slower", priority=True),
    ]
    FOOT: ClassVar[str] = "space play  ←→ step  [] 10 s  +- speed  s sort  f class  / find  ? help  q quit"
    KEYS: ClassVar[tuple[str, ...]] = (
        "space           play or pause       + -     faster, slower",
        "← →             one snapshot back or forward",
        "[ ]             10 seconds back or forward (also Shift with ← →)",
    )

    def __init__(self, player: Player) -> None:
        super().__init__()
        self._player = player
        self._shown: int | None = None
        self._ticked_at = time.monotonic()
        self._damage: str | None = None

    def on_mount(self) -> None:
        """Show the snapshot at the start position, and start the clock."""
        self._turn()
        self.set_interval(TICK_S, self._tick)

    def _tick(self) -> None:
        now = time.monotonic()
        elapsed, self._ticked_at = now - self._ticked_at, now
        if self._player.playing:
            self._player.advance(elapsed)
            self._turn()

    def _turn(self) -> None:
        """Show the snapshot at the player's position, unless it is shown already."""
        index = self._player.index
        if index == self._shown:
            self.draw_head()
            return
        recording = self._player.recording
        before = self.folded if self._shown is not None and index == self._shown + 1 else None
        self._shown = index
        self.history = WaitHistory()
        for past in range(recording.at(recording.times[index] - SPAN_S), index + 1):
            self.history.add(recording.times[past], recording.waits[past])
        try:
            if before is None and index > 0:
                before = FoldedSnapshot(recording.snapshot(index - 1))
            self._damage = None
            self.show(FoldedSnapshot(recording.snapshot(index), before))
        except BadFile as error:
            self._damage = error.what
            self._player.playing = False
            self.draw_head()

    def action_play(self) -> None:
        """Play or pause."""
        self._player.toggle()
        self._turn()

    def action_step(self, count: int) -> None:
        """Go forward by ``count`` snapshots (back if negative)."""
        self._player.step(count)
        self._turn()

    def action_jump(self, seconds: int) -> None:
        """Go forward by ``seconds`` (back if negative)."""
        self._player.seek(self._player.moment + seconds)
        self._turn()

    def action_speed(self, steps: int) -> None:
        """Play faster or slower."""
        self._player.faster(steps)
        self.draw_head()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable the replay keys while a filter is being typed or another page is open."""
        typing = self.focused is not None and self.focused.id == "filter"
        return not (action in _NOT_WHILE_TYPING and (typing or len(self.screen_stack) > 1))

    def status(self) -> str:
        """Return the state, speed and position of the replay."""
        player = self._player
        state = "▶ playing" if player.playing else "■ END" if player.at_end else "‖ paused"
        return f"{state} {player.speed:g}× · snapshot {player.index + 1:,} of {len(player.recording):,}"

    def messages(self) -> list[str]:
        """Return the messages: the timeline, an error if the snapshot is damaged, and the notes."""
        times = self._player.recording.times
        texts = [f"{clock(times[0])} {self._line(self.columns - 20)} {clock(times[-1])}"]
        if self._damage:
            texts.append(f"THIS SNAPSHOT CANNOT BE SHOWN: {self._damage}")
        texts += self._player.recording.notes
        return texts

    def _line(self, columns: int) -> str:
        times = self._player.recording.times
        whole = times[-1] - times[0] or 1.0
        done = round((self._player.moment - times[0]) / whole * (columns - 1))
        return f"{'━' * done}●{'─' * (columns - 1 - done)}"
