"""Code shared by several commands: options that choose a server, and tables for a terminal."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import click

from innoscope.cli.parameters import completes
from innoscope.common import console, sanitize
from innoscope.target.discover import find_all
from innoscope.toggles.model import ChangeRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

F = TypeVar("F", bound="Callable[..., Any]")

_GAP = "  "
_NARROWEST = 12  # minimum width of a truncated cell


def _pids() -> Mapping[str, str]:
    """Return the pids and versions of the servers on this host, for shell completion."""
    return {str(target.pid): f"{target.flavour} {target.version_text}" for target in find_all()}


def target_options(function: F) -> F:
    """Add ``--pid``, ``--socket`` and ``--port``, passed as ``pid``, ``socket`` and ``port``."""
    for option in (
        click.option(
            "-P",
            "--port",
            type=click.IntRange(1, 65535),
            metavar="PORT",
            help="The server that listens on this TCP port.",
        ),
        click.option(
            "-S",
            "--socket",
            type=click.Path(),
            metavar="PATH",
            help="The server that listens on this Unix socket.",
        ),
        click.option(
            "-p",
            "--pid",
            type=click.IntRange(1),
            metavar="PID",
            shell_complete=completes(_pids),
            help="The server with this process id.",
        ),
    ):
        function = option(function)
    return function


def on_terminal() -> bool:
    """Return whether standard input is a terminal, so that the user can be asked questions."""
    return sys.stdin.isatty()


def require_yes(question: str, command: str) -> None:
    """Ask for confirmation. Raise ChangeRefused, with ``command`` as the remedy, unless the answer is yes."""
    if not on_terminal():
        raise ChangeRefused(
            "cannot ask for confirmation without a terminal: nothing was changed", remedy=f"{command} --yes"
        )
    if not console.ask_yes_no(question):
        raise ChangeRefused("not confirmed: nothing was changed", remedy=command)


def full_option(function: F) -> F:
    """Add ``--full``, passed as ``full``."""
    return click.option(
        "--full", is_flag=True, help="Show complete stacks, with functions of the C library (text)."
    )(function)


def json_option(function: F) -> F:
    """Add ``--json``, passed as ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def source_options(function: F) -> F:
    """Add ``--no-sql`` and ``--no-probes``, passed as ``no_sql`` and ``no_probes``."""
    for option in (
        click.option("--no-probes", is_flag=True, help="Do not attach eBPF probes."),
        click.option("--no-sql", is_flag=True, help="Do not connect to the server."),
    ):
        function = option(function)
    return function


def sql_options(function: F) -> F:
    """Add ``--defaults-file`` and ``--user``. There is no --password, because ``ps`` would show it."""
    for option in (
        click.option(
            "-u",
            "--user",
            metavar="NAME",
            help="SQL account.  [default: from the option file, else the system user]",
        ),
        click.option(
            "--defaults-file",
            type=click.Path(),
            metavar="FILE",
            help="Option file with user and password in [client] or [client-innoscope].  "
            "[default: /etc/my.cnf, /etc/mysql/my.cnf, ~/.my.cnf]",
        ),
    ):
        function = option(function)
    return function


def terminal_width() -> int | None:
    """Return the width of the terminal, or None if standard output is not a terminal.

    Lines are truncated only on a terminal.
    """
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
    """Yield the lines of a table with aligned columns. Columns with headings in ``right`` are right-aligned.

    Columns that are empty in every row are omitted. The widest columns are truncated to fit ``width``, but
    not below ``_NARROWEST`` characters.
    """
    # Escape before measuring, because escaping changes the widths.
    rows = [[sanitize.line(cell) for cell in row] for row in rows]
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
    """Return the widths after shrinking the widest column, character by character, until the row fits.

    No column becomes narrower than ``_NARROWEST``.
    """
    if width is None:
        return widths
    fitted = list(widths)
    while fitted and sum(fitted) + len(_GAP) * (len(fitted) - 1) > width and max(fitted) > _NARROWEST:
        fitted[fitted.index(max(fitted))] -= 1
    return fitted
