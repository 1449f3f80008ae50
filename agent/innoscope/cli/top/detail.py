"""Pages opened from the view: one complete stack, the notes of a snapshot, the key bindings."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from innoscope.cli.top.lines import clock, server
from innoscope.common import sanitize
from innoscope.sampling.render.words import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from textual.app import ComposeResult
    from textual.binding import BindingType

    from innoscope.cli.top.frame import StackRow
    from innoscope.sampling.model import Frame, Snapshot, Thread
    from innoscope.target.model import Query


class TextScreen(ModalScreen[None]):
    """A scrollable page of text. Esc, Enter and q close it."""

    CSS = """
    TextScreen { align: left top; }
    TextScreen #title, TextScreen #foot { height: 1; text-style: reverse; padding: 0 1; }
    TextScreen VerticalScroll { padding: 0 1; height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape,enter,q", "dismiss", "Back"),
    ]

    def __init__(self, title: str, lines: Iterable[str]) -> None:
        super().__init__()
        self._title = sanitize.line(title)
        self._lines = [sanitize.line(line) for line in lines]

    def compose(self) -> ComposeResult:
        """Yield the title, the text and the key hints."""
        yield Static(Text(self._title, no_wrap=True, overflow="ellipsis"), id="title")
        with VerticalScroll():
            yield Static(Text("\n".join(self._lines)))
        yield Static("↑ ↓ PgUp PgDn scroll · Esc back", id="foot", markup=False)

    def on_mount(self) -> None:
        """Focus the text, so that the scroll keys work."""
        self.query_one(VerticalScroll).focus()


def stack_page(row: StackRow, label: str, snapshot: Snapshot) -> TextScreen:
    """Return the page of one stack: its frames, statements and threads."""
    title = f"{row.count:,} threads · {label} · {server(snapshot)} at {clock(snapshot.taken_at)}"
    return TextScreen(clean(title), stack_text(row))


def stack_text(row: StackRow) -> Iterator[str]:
    """Yield the lines with all details of one stack."""
    yield "STACK, innermost function first"
    for number, frame in enumerate(row.frames):
        yield f"{number:>4}  {_frame(frame)}"
    if not row.frames:
        yield "      no frames could be read"
    yield ""
    if row.queries:
        yield "STATEMENTS (digests, without literals)"
        for text, count in row.queries.most_common():
            yield f"{count:>6,}×  {clean(text)}"
        yield ""
    trust = Counter(thread.trust.value for thread in row.threads)
    yield f"THREADS ({', '.join(f'{count:,} {name}' for name, count in trust.most_common())})"
    yield "       tid state trust      name             connection"
    for thread in sorted(row.threads, key=lambda thread: thread.tid):
        yield _thread(thread)


def _frame(frame: Frame) -> str:
    marks = "".join(f" [{mark}]" for mark, on in (("inlined", frame.inlined), ("kernel", frame.kernel)) if on)
    place = "" if frame.function is None else f"  ({frame.module}+0x{frame.offset:x})"
    return clean(f"{frame.label}{marks}{place}")


def _thread(thread: Thread) -> str:
    query = _query(thread.query) if thread.query else ""
    inside = f" (in its own pid namespace {thread.ns_tid})" if thread.ns_tid != thread.tid else ""
    name = f"{clean(thread.comm):<16}"
    return f"{thread.tid:>10} {thread.state:<5} {thread.trust:<10} {name} {query}{inside}".rstrip()


def _query(query: Query) -> str:
    who = f"#{query.connection_id} {query.user or '?'}@{query.host or '?'}"
    where = f" db {query.db}" if query.db else ""
    seconds = f" {query.seconds:,} s" if query.seconds is not None else ""
    state = f" [{query.state}]" if query.state else ""
    return clean(f"{who}{where} {query.command or ''}{seconds}{state}")
