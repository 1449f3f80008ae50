"""Write to standard output and standard error.

No other module does so, except for logs and in child processes (tests/unit/test_one_output.py).

All text is sanitized here. Besides line feeds, the only control characters in it come from ``progress``,
``clear_progress`` and ``Colored`` lines. The bytes of ``raw`` are written unchanged.
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

#: Move to the first column and clear to the end of the line.
CLEAR_LINE: Final = "\r\x1b[K"


class Color(StrEnum):
    """Output colors. The values are click's color names."""

    RED = "red"  # failed, urgent
    YELLOW = "yellow"  # degraded
    GREEN = "green"  # healthy


class Colored(str):
    """A line of output that is colored on a terminal, and plain text everywhere else."""

    color: Color

    def __new__(cls, text: str, color: Color) -> Colored:
        """Create a line that is shown in ``color``."""
        made = super().__new__(cls, text)
        made.color = color
        return made


def line(text: str = "", *, err: bool = False) -> None:
    """Write one line and flush the stream."""
    lines((text,), err=err)


def lines(texts: Iterable[str], *, err: bool = False) -> None:
    """Write lines. Line feeds inside a line are escaped, so that an untrusted name cannot add a line."""
    stream = _stream(err=err)
    for text in texts:
        shown = sanitize.line(text)
        if isinstance(text, Colored) and _has_colors(stream):
            shown = click.style(shown, fg=text.color)
        _write(stream, shown + "\n")
    stream.flush()


def block(text: str, *, err: bool = False) -> None:
    """Write multi-line text, such as a help text, a remedy or a traceback."""
    lines(sanitize.block(text).removesuffix("\n").split("\n"), err=err)


def document(value: Any, *, indent: int | None = None) -> None:
    """Write a JSON value to standard output."""
    stream = _stream(err=False)
    _write(stream, sanitize.dumps(value, indent=indent) + "\n")
    stream.flush()


def raw(data: bytes) -> None:
    """Write bytes of a binary format to standard output."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)


def shows_progress() -> bool:
    """Return whether progress can be shown, that is, whether standard error is a terminal."""
    return sys.stderr.isatty()


def progress(text: str) -> None:
    """Replace the progress line on standard error. Do nothing if standard error is not a terminal."""
    if shows_progress():
        _write(sys.stderr, CLEAR_LINE + sanitize.line(text))
        sys.stderr.flush()


def clear_progress() -> None:
    """Remove the progress line. Do nothing if standard error is not a terminal."""
    if shows_progress():
        sys.stderr.write(CLEAR_LINE)
        sys.stderr.flush()


def ask_yes_no(question: str) -> bool:
    """Ask on standard error and return whether the answer is y or yes. Raise click.Abort at end of input."""
    return click.confirm(sanitize.line(question), err=True)


def ask_text(question: str) -> str:
    """Ask on standard error and return the typed answer. Raise click.Abort at end of input."""
    return str(click.prompt(sanitize.line(question), default="", show_default=False, err=True))


def flush() -> None:
    """Flush standard output and standard error."""
    sys.stdout.flush()
    sys.stderr.flush()


def _stream(*, err: bool) -> TextIO:
    return sys.stderr if err else sys.stdout


def _has_colors(stream: TextIO) -> bool:
    """Return whether the stream is a terminal with colors and NO_COLOR is not set (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _write(stream: TextIO, text: str) -> None:
    """Write text; escape characters that the stream's encoding cannot represent."""
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
