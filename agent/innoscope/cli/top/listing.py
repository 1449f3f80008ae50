"""A list with a cursor. Textual's own lists restyle all lines on each change, which is too slow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from innoscope.cli.top.lines import fit
from innoscope.common import sanitize

if TYPE_CHECKING:
    from textual import events
    from textual.binding import BindingType


@dataclass(frozen=True, slots=True)
class Item:
    """An item of one or more lines. Items can be selected unless ``key`` is None."""

    key: str | None
    lines: tuple[str, ...]


class Listing(ScrollView, can_focus=True):
    """A list of items. ↑ ↓ move the cursor; Enter selects the item. Updates keep the cursor on its item."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("up", "move(-1)", "Up"),
        ("down", "move(1)", "Down"),
        ("pageup", "page(-1)", "Page up"),
        ("pagedown", "page(1)", "Page down"),
        ("home", "move(-1000000)", "First"),
        ("end", "move(1000000)", "Last"),
        ("enter", "choose", "Open"),
    ]

    class Chosen(Message):
        """Sent when the user selects an item with Enter or a click."""

        def __init__(self, listing: Listing, key: str) -> None:
            super().__init__()
            self.listing = listing
            self.key = key

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._items: list[Item] = []
        self._lines: list[tuple[str, int]] = []  # text, index of its item
        self._cursor = 0

    @property
    def items(self) -> list[Item]:
        """Return the items that are shown."""
        return self._items

    @property
    def key(self) -> str | None:
        """Return the key of the item under the cursor."""
        return self._items[self._cursor].key if self._items else None

    def fill(self, items: list[Item]) -> None:
        """Replace the items and keep the cursor on its item.

        If the cursor is at the top, or its item no longer exists, the cursor keeps its position instead.
        """
        if items == self._items:
            return
        chosen = self.key if self._cursor else None
        grown = sum(len(item.lines) for item in items) != len(self._lines)
        self._items = items
        shown = ((line, number) for number, item in enumerate(items) for line in item.lines)
        self._lines = [(sanitize.line(line), number) for line, number in shown]
        keys = {item.key: number for number, item in enumerate(items)}
        place = min(self._cursor, max(0, len(items) - 1))
        self._cursor = keys.get(chosen, place) if chosen is not None else place
        self.virtual_size = Size(self.size.width, len(self._lines))
        self.refresh(layout=grown)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return the number of lines, for ``height: auto``."""
        return len(self._lines)

    def render_line(self, y: int) -> Strip:
        """Return the line at row ``y`` of the widget."""
        number = y + self.scroll_offset.y
        width = self.size.width
        if number >= len(self._lines):
            return Strip.blank(width, self.rich_style)
        text, item = self._lines[number]
        return Strip([Segment(fit(f" {text}", width), self._style(item))], width)

    def _style(self, item: int) -> Style:
        if item != self._cursor:
            return self.rich_style
        return self.rich_style + Style(bold=True, reverse=self.has_focus)

    def action_move(self, steps: int) -> None:
        """Move the cursor down by ``steps`` items (up if negative)."""
        self._go(self._cursor + steps)

    def action_page(self, direction: int) -> None:
        """Move the cursor one page down (up if ``direction`` is -1)."""
        line = self._first_line(self._cursor) + direction * max(1, self.size.height - 1)
        inside = min(max(line, 0), len(self._lines) - 1)
        if self._lines:
            self._go(self._lines[inside][1])

    def action_choose(self) -> None:
        """Send ``Chosen`` for the item under the cursor."""
        if (key := self.key) is not None:
            self.post_message(self.Chosen(self, key))

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the clicked item; select the item if the cursor was already on it."""
        number = event.y + self.scroll_offset.y
        if number < len(self._lines):
            item = self._lines[number][1]
            again = item == self._cursor
            self._go(item)
            if again:
                self.action_choose()

    def on_focus(self) -> None:
        """Redraw the list with its cursor highlighted."""
        self.refresh()

    def on_blur(self) -> None:
        """Redraw the list without the highlight."""
        self.refresh()

    def _go(self, item: int) -> None:
        if not self._items:
            return
        self._cursor = min(max(item, 0), len(self._items) - 1)
        height = len(self._items[self._cursor].lines)
        self.scroll_to_region(
            Region(0, self._first_line(self._cursor), 1, height), animate=False, force=True, immediate=True
        )
        self.refresh()

    def _first_line(self, item: int) -> int:
        return sum(len(shown.lines) for shown in self._items[:item])
