"""What several commands share: options that choose a server, and tables for a terminal."""

from __future__ import annotations

import re
import shutil
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import click

from innoscope.common import console, sanitize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

F = TypeVar("F", bound="Callable[..., Any]")

_GAP = "  "
_NARROWEST = 12  # columns that a cut cell keeps
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"(\d{1,9})([smhd])", re.ASCII)
_LONGEST_S = 366 * 86_400


def target_options(function: F) -> F:
    """``--pid``, ``--socket`` and ``--port``: keyword arguments ``pid, socket, port`` of the command."""
    for option in (
        click.option(
            "--port", type=click.IntRange(1, 65535), help="The server that listens on this TCP port."
        ),
        click.option("--socket", metavar="PATH", help="The server that listens on this Unix socket."),
        click.option("-p", "--pid", type=click.IntRange(1), help="The server with this process id."),
    ):
        function = option(function)
    return function


def on_terminal() -> bool:
    """Return whether somebody can be asked."""
    return sys.stdin.isatty()


def require_yes(question: str, command: str) -> None:
    """Ask. Raises Refused unless the answer is yes; ``command`` with --yes is what needs no answer."""
    # Here, because the daemons' commands import this module and must not reach innoscope.toggles.
    from innoscope.toggles.model import Refused

    if not on_terminal():
        raise Refused(
            "there is no terminal to ask for confirmation: nothing was changed", remedy=f"{command} --yes"
        )
    if not console.ask_yes_no(question):
        raise Refused("not confirmed: nothing was changed", remedy=command)


def json_option(function: F) -> F:
    """``--json``, given to the command as ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")(function)


def source_options(function: F) -> F:
    """``--no-sql`` and ``--no-probes``: keyword arguments ``no_sql, no_probes`` of the command."""
    for option in (
        click.option("--no-probes", is_flag=True, help="Attach no eBPF probes."),
        click.option("--no-sql", is_flag=True, help="Ask the server nothing."),
    ):
        function = option(function)
    return function


def sql_options(function: F) -> F:
    """``--defaults-file`` and ``--user``: ``defaults_file, user``. There is no --password, on purpose."""
    for option in (
        click.option(
            "-u", "--user", help="The SQL account [default: from the option file, else the system user]."
        ),
        click.option(
            "--defaults-file",
            metavar="PATH",
            help="File with user and password under [client] or [client-innoscope] [default: ~/.my.cnf].",
        ),
    ):
        function = option(function)
    return function


def duration_option(_: click.Context, __: click.Parameter, value: str | None) -> float | None:
    """Callback of an option: seconds of ``90s``, ``10m``, ``2h`` or ``1d``."""
    if value is None:
        return None
    match = _DURATION.fullmatch(value.strip())
    seconds = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 0 < seconds <= _LONGEST_S:
        raise click.BadParameter(f"{value!r} is no time: 90s, 10m, 2h or 1d (at most 366d)")
    return float(seconds)


def terminal_width() -> int | None:
    """Columns of the terminal that stdout is; None when it is a file or a pipe, where nothing is cut."""
    if not sys.stdout.isatty():
        return None

    return shutil.get_terminal_size().columns


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: frozenset[str] = frozenset(),
    width: int | None = None,
) -> Iterator[str]:
    """The lines of a table with aligned columns; headings in ``right`` are aligned to the right.

    Columns that are empty in every row are left out. With a ``width`` the longest columns are cut with ``…``.
    """
    rows = [[sanitize.line(cell) for cell in row] for row in rows]  # before their width is measured
    kept = [index for index in range(len(headings)) if any(row[index] for row in rows)]
    cells = [[row[index] for index in kept] for row in ([*headings], *rows)]
    widths = _fit([max(len(row[column]) for row in cells) for column in range(len(kept))], width)
    to_right = [headings[index] in right for index in kept]
    for row in cells:
        columns = zip(row, widths, to_right, strict=True)
        yield _GAP.join(_cell(text, size, flush) for text, size, flush in columns).rstrip()


def _cell(text: str, size: int, flush_right: bool) -> str:
    if len(text) > size:
        text = text[: size - 1] + "…"
    return text.rjust(size) if flush_right else text.ljust(size)


def _fit(widths: list[int], width: int | None) -> list[int]:
    """Take from the widest column until the row fits."""
    if width is None:
        return widths
    fitted = list(widths)
    while fitted and sum(fitted) + len(_GAP) * (len(fitted) - 1) > width and max(fitted) > _NARROWEST:
        fitted[fitted.index(max(fitted))] -= 1
    return fitted
