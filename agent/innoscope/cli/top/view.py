"""The screen: headline, wait classes and most frequent stacks of a live server or a recording."""

from __future__ import annotations

import errno
import sys
import termios
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.app import App
from textual.widgets import Input, Static

from innoscope.cli.top import lines
from innoscope.cli.top.detail import TextScreen, stack_page
from innoscope.cli.top.frame import Choice, FoldedSnapshot, StackRow, waits
from innoscope.cli.top.history import WaitHistory
from innoscope.cli.top.listing import Item, Listing
from innoscope.common import sanitize
from innoscope.common.errors import ExitCode
from innoscope.sampling.classify import label
from innoscope.sampling.render.words import clean, trust

if TYPE_CHECKING:
    from textual import events
    from textual.app import ComposeResult
    from textual.binding import BindingType

MAX_ROWS = 200
#: Seconds between checks of whether the terminal still exists.
_TERMINAL_CHECK_S = 1.0
_PARTS = {"head", "trust", "messages", "waits-head", "waits", "stacks-head", "stacks", "filter", "foot"}
CSS = """
Screen { layout: vertical; }
#head, #trust, #waits-head, #stacks-head, #foot { height: 1; padding: 0 1; }
#head { text-style: bold; }
#waits-head, #stacks-head, #foot { text-style: reverse; }
#messages { height: auto; max-height: 4; padding: 0 1; text-style: bold; }
Listing { scrollbar-size-vertical: 1; overflow-x: hidden; }
#waits { height: auto; max-height: 40%; }
#stacks { height: 1fr; }
#filter { display: none; height: 1; border: none; padding: 0 1; }
#filter.shown { display: block; }
"""


class StacksApp(App[None]):
    """The view that ``top`` and ``replay`` share.

    Subclasses call ``show`` with each snapshot, and add key bindings.
    """

    CSS = CSS
    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = "#stacks"
    BINDINGS: ClassVar[list[BindingType]] = [
        ("s", "sort", "Sort"),
        ("f", "class", "Class"),
        ("slash", "find", "Find"),
        ("i", "idle", "Idle"),
        ("n", "notes", "Notes"),
        ("question_mark", "help", "Help"),
        ("q", "quit", "Quit"),
        ("escape", "clear", "All"),
    ]
    FOOT: ClassVar[str] = ""
    KEYS: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        super().__init__()
        self.choice = Choice()
        self.history = WaitHistory()
        self.folded: FoldedSnapshot | None = None
        self._rows: dict[str, StackRow] = {}
        self._broken: Exception | None = None

    def on_mount(self) -> None:
        """Check regularly that the terminal exists: without one, Textual spins if SIGHUP is ignored."""
        self.set_interval(_TERMINAL_CHECK_S, self._exit_without_terminal)

    def _exit_without_terminal(self) -> None:
        if _terminal_was_closed():
            self.exit(return_code=ExitCode.INTERRUPTED)

    def compose(self) -> ComposeResult:
        """Yield the widgets from top to bottom."""
        yield Static(id="head")
        yield Static(id="trust")
        yield Static(id="messages")
        yield Static(id="waits-head")
        yield Listing(id="waits")
        yield Static(id="stacks-head")
        yield Listing(id="stacks")
        yield Input(id="filter", placeholder="find functions, statements, users; Enter: keep, Esc: clear")
        yield Static(self.FOOT, id="foot", markup=False)

    def status(self) -> str:
        """Return the text that is shown next to the trust tally."""
        return ""

    def messages(self) -> list[str]:
        """Return the messages, the most important first."""
        return []

    def run_to_end(self) -> int:
        """Run the view until the user quits, and return the exit code. Raise unexpected exceptions."""
        self.run()
        if self._broken is not None:
            raise self._broken
        return self.return_code or 0

    def _handle_exception(self, error: Exception) -> None:
        self._broken = error
        super()._handle_exception(error)

    def _fatal_error(self) -> None:
        """Stop Textual from printing a traceback with variables; ``run_to_end`` raises the error instead."""
        self._close_messages_no_wait()

    def show(self, folded: FoldedSnapshot) -> None:
        """Show a snapshot."""
        self.folded = folded
        self.draw()

    def draw(self) -> None:
        """Redraw the screen after a snapshot, a key press or a resize."""
        self.draw_head()
        if self.ready and self.folded is not None:
            self._draw_waits(self.folded)
            self._draw_stacks(self.folded)

    @property
    def ready(self) -> bool:
        """Return whether the screen exists; snapshots also arrive while it is being created or removed."""
        return bool(self.screen_stack) and {child.id for child in self.screen_stack[0].children} >= _PARTS

    @property
    def columns(self) -> int:
        """Return the width of a line in cells, without the one-cell margins and the scroll bar."""
        return max(20, self.size.width - 3)

    def draw_head(self) -> None:
        """Draw the headline, the trust tally with the status, and the messages."""
        if not self.ready:
            return
        snapshot = self.folded.snapshot if self.folded else None
        width = self.columns + 1
        self._put("#head", lines.headline(snapshot, width) if snapshot else "taking the first snapshot …")
        words = filter(None, (trust(snapshot.tally) if snapshot else "", self.status()))
        self._put("#trust", lines.fit(" · ".join(words), width))
        texts = [lines.fit(clean(text), width) for text in (*self.messages(), *self._chosen())]
        self._put("#messages", "\n".join(texts))
        self._static("#messages").display = bool(texts)

    def _chosen(self) -> list[str]:
        words = [f"class {label(self.choice.wait)}"] if self.choice.wait else []
        words += [f"text “{self.choice.text}”"] if self.choice.text else []
        words += ["idle threads hidden"] if self.choice.hide_idle else []
        return [f"shown: {', '.join(words)} (Esc: all)"] if words else []

    def _draw_waits(self, folded: FoldedSnapshot) -> None:
        counts = folded.snapshot.waits
        counts |= dict.fromkeys(sorted(self.history.known() - counts.keys()), 0)
        shown = waits(counts, self.choice)
        highest = max((count for _, count in shown), default=0)
        names = {wait: ("▸ " if wait == self.choice.wait else "") + label(wait) for wait, _ in shown}
        widths = lines.Widths.of(self.columns, names.values())
        items = []
        for wait, count in shown:
            series = self.history.series(wait, widths.spark)
            items.append(Item(wait, (lines.wait_line(names[wait], count, highest, series, widths),)))
        self._put("#waits-head", lines.waits_head(widths))
        self._list("#waits").fill(items)

    def _draw_stacks(self, folded: FoldedSnapshot) -> None:
        rows = folded.choose(self.choice)
        self._rows = {repr(row.key): row for row in rows[:MAX_ROWS]}
        widths = lines.Widths.of(self.columns, {label(row.wait) for row in self._rows.values()})
        items = [
            Item(key, tuple(lines.stack_lines(row, label(row.wait), widths)))
            for key, row in self._rows.items()
        ]
        if len(rows) > MAX_ROWS:
            rest = sum(row.count for row in rows[MAX_ROWS:])
            text = f"… {len(rows) - MAX_ROWS:,} more stacks with {rest:,} threads: filter with f or /"
            items.append(Item(None, (text,)))
        if not rows:
            items.append(Item(None, ("no stack matches; Esc shows all",)))
        self._put("#stacks-head", lines.stacks_head(widths, self.choice.order.value))
        self._list("#stacks").fill(items)

    def _put(self, selector: str, text: str) -> None:
        self._static(selector).update(Text(sanitize.block(text), no_wrap=True))

    def _static(self, selector: str) -> Static:
        return self.screen_stack[0].query_one(selector, Static)

    def _list(self, selector: str) -> Listing:
        return self.screen_stack[0].query_one(selector, Listing)

    def on_resize(self, _: events.Resize) -> None:
        """Redraw the screen: its lines are formatted for the old width."""
        self.call_after_refresh(self.draw)

    def on_listing_chosen(self, event: Listing.Chosen) -> None:
        """Filter by the selected wait class, or open the selected stack."""
        if event.listing.id == "waits":
            self._choose_class(event.key)
        elif (row := self._rows.get(event.key)) and self.folded:
            self.push_screen(stack_page(row, label(row.wait), self.folded.snapshot))

    def action_sort(self) -> None:
        """Change to the next sort order."""
        self._choose(replace(self.choice, order=self.choice.order.next))

    def action_class(self) -> None:
        """Show only the wait class of the highlighted line, or all classes again."""
        waits, stacks = self._list("#waits"), self._list("#stacks")
        row = self._rows.get(stacks.key or "")
        self._choose_class(waits.key if waits.has_focus else row.wait if row else None)

    def action_idle(self) -> None:
        """Hide idle threads, or show them again."""
        self._choose(replace(self.choice, hide_idle=not self.choice.hide_idle))

    def action_clear(self) -> None:
        """Show all stacks again."""
        self.query_one("#filter", Input).value = ""
        self._close_find()
        self._choose(replace(self.choice, wait=None, text="", hide_idle=False))

    def action_find(self) -> None:
        """Show and focus the input field of the filter."""
        field = self.query_one("#filter", Input)
        field.add_class("shown")
        field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Apply the filter while the user is typing."""
        self._choose(replace(self.choice, text=event.value))

    def on_input_submitted(self, _: Input.Submitted) -> None:
        """Keep the filter, and return the focus to the stacks."""
        self._close_find()

    def action_notes(self) -> None:
        """Show the notes of this snapshot in full."""
        notes = [*self.messages(), *(self.folded.snapshot.notes if self.folded else ())]
        self.push_screen(TextScreen("Notes", map(clean, notes or ["There are no notes."])))

    def action_help(self) -> None:
        """Show the key bindings."""
        self.push_screen(TextScreen("Keys", [*self.KEYS, *_KEYS]))

    def _choose_class(self, wait: str | None) -> None:
        self._choose(replace(self.choice, wait=None if self.choice.wait else wait))

    def _choose(self, choice: Choice) -> None:
        self.choice = choice
        self.draw()

    def _close_find(self) -> None:
        self.query_one("#filter", Input).remove_class("shown")
        self._list("#stacks").focus()


_KEYS = (
    "↑ ↓ PgUp PgDn   move                Tab     between wait classes and stacks",
    "Enter           on a stack: show its frames, statements and threads",
    "                on a class: show only that class; again: all",
    "f               show only the class of the highlighted line; again: all",
    "/               show only stacks with a text in a function, statement, user or thread",
    "i               hide idle threads, or show them again",
    "s               sort by threads, change since the previous snapshot, class, function",
    "Esc             show all stacks again",
    "n               show what is missing in this snapshot, and why",
    "q               quit",
    "",
    "exact: did not run while it was copied · inferred: like exact, but a register was not known ·",
    "on_cpu: was running, sampled · stale: was running, not sampled, do not trust it · torn: ran while",
    "copied · truncated: too deep to copy completely · incomplete: the outermost frame is not a thread's",
    "start",
)


def _terminal_was_closed() -> bool:
    """Return whether standard input is a terminal that has been closed, for example by a lost connection."""
    try:
        termios.tcgetattr(sys.stdin)
    except (termios.error, OSError) as error:
        return bool(error.args[0] == errno.EIO)
    except ValueError:  # standard input is closed
        return False
    return False
