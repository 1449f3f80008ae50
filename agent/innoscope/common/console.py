"""Write to standard output and standard error: the only module that does (tests/unit/test_one_output.py).

All text is sanitized here. The control characters that the program itself wants on a terminal are those of
``progress`` and ``wipe``, and the colour of a whole line (``Coloured``), added after sanitizing; ``top`` and
``replay`` draw through Textual (top/view.py).
"""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from innoscope.common import sanitize

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Back to the first column, and clear to the end of the line.
WIPE: Final = "\r\x1b[K"



class Colour(StrEnum):
    """What a colour stands for; the values are click's names."""

    RED = "red"  # failed, urgent
    YELLOW = "yellow"  # degraded
    GREEN = "green"  # as it should be


class Coloured(str):
    """A line of output that has a colour on a terminal; everywhere else it is its text."""

    colour: Colour

    def __new__(cls, text: str, colour: Colour) -> Coloured:
        """Make a line of this colour."""
        made = super().__new__(cls, text)
        made.colour = colour
        return made


def line(text: str = "", *, err: bool = False) -> None:
    """Write one line, seen at once."""
    lines((text,), err=err)


def lines(texts: Iterable[str], *, err: bool = False) -> None:
    """Write lines; a line feed inside one is escaped, so that no name can add a line of its own."""
    stream = _stream(err=err)
    for text in texts:
        shown = sanitize.line(text)
        if isinstance(text, Coloured) and _has_colours(stream):
            shown = click.style(shown, fg=text.colour)
        _write(stream, shown + "\n")
    stream.flush()


def block(text: str, *, err: bool = False) -> None:
    """Write text of several lines: a help text, a remedy, a traceback."""
    lines(sanitize.block(text).removesuffix("\n").split("\n"), err=err)


def document(value: Any, *, indent: int | None = None) -> None:
    """Write a JSON value to standard output."""
    stream = _stream(err=False)
    _write(stream, sanitize.dumps(value, indent=indent) + "\n")
    stream.flush()


def raw(data: bytes) -> None:
    """Write bytes of a format that is not for terminals to standard output."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)


def watched() -> bool:
    """Return whether standard error is a terminal, where progress is shown."""
    return sys.stderr.isatty()


def progress(text: str) -> None:
    """Replace the line of progress on standard error; nothing when nobody watches."""
    if watched():
        _write(sys.stderr, WIPE + sanitize.line(text))
        sys.stderr.flush()


def wipe() -> None:
    """Remove the line of progress; nothing when nobody watches."""
    if watched():
        sys.stderr.write(WIPE)
        sys.stderr.flush()


def confirmed(question: str) -> bool:
    """Ask on standard error; only y or yes is a yes. Raises click.Abort at the end of input."""
    return click.confirm(sanitize.line(question), err=True)


def answer(question: str) -> str:
    """Ask on standard error and return what was typed. Raises click.Abort at the end of input."""
    return str(click.prompt(sanitize.line(question), default="", show_default=False, err=True))


def flush() -> None:
    """Hand over to the kernel what was written."""
    sys.stdout.flush()
    sys.stderr.flush()


def _stream(*, err: bool) -> TextIO:
    return sys.stderr if err else sys.stdout


def _has_colours(stream: TextIO) -> bool:
    """Return whether the stream is a terminal with colours and the user wants them (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _write(stream: TextIO, text: str) -> None:
    """Write; what the terminal's encoding does not have is escaped too."""
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
