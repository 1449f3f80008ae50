"""``innoscope history``: show what busy threads did in the past, from the agent's history files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from innoscope.cli import history_sql, history_text
from innoscope.cli.common import full_option, json_option, table, terminal_width
from innoscope.cli.parameters import CommandGroup, Duration, Moment, completes, did_you_mean
from innoscope.common import console
from innoscope.common.errors import InnoscopeError
from innoscope.daemon.agent.config import HistorySettings
from innoscope.sampling.classify import default_classifier
from innoscope.sampling.render.sink import open_sink
from innoscope.sampling.sessions.report import (
    COLUMNS,
    BadCondition,
    ColumnCondition,
    Question,
    SessionHistory,
    condition,
    document,
    limited_memory,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_DEFAULT: Final = "report"
_HELP: Final = ("--help", "-h")
_LIMIT: Final = 20

_REPORT_EPILOG = """\b
Examples:
  sudo innoscope history report                        the last hour: statements and wait classes
  sudo innoscope history report 15m --by wait          what threads waited for in the last 15 minutes
  sudo innoscope history report --from 14:00 --to 14:10 --by user,wait --server orders
  sudo innoscope history report 1d --where wait=row_lock --by cause    the statements that others waited for
  sudo innoscope history report 1h --where wait=fsync_redo --where user=app --by stack --limit 3
"""

_EPILOG = """\b
Examples:
  sudo innoscope history                               the last hour: statements and wait classes
  sudo innoscope history 15m --by wait                 what threads waited for in the last 15 minutes
  sudo innoscope history --from 14:00 --to 14:10 --by user,wait --server orders
  sudo innoscope history 1d --where wait=row_lock --by cause
  sudo innoscope history 1h --where wait=fsync_redo,fsync_data --flame commits.svg
  innoscope history 7d --dir ./copied --by wait --json
  innoscope history sql "SELECT wait, sum(weight) FROM samples GROUP BY 1" --dir ./copied

\b
Options of the report: innoscope history report --help. `report` may be omitted.
Exit codes: 1 nothing was observed in this time, 6 no permission to read the files, 8 DuckDB rejected the SQL,
9 no history or a damaged file. All codes: docs/cli.md. What is stored: docs/history.md.
"""


class _ReportGroup(CommandGroup):
    """A group whose default command is ``report``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        completing = ctx.resilient_parsing and not args
        if not completing and (not args or (args[0] not in self.commands and args[0] not in _HELP)):
            args = [_DEFAULT, *args]
        return super().parse_args(ctx, args)


def _columns(_: click.Context, __: click.Parameter, value: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(value.split(",")))
    for name in names:
        if name not in COLUMNS:
            near = did_you_mean(name, COLUMNS) or f"; there are: {', '.join(COLUMNS)}"
            raise click.BadParameter(f"unknown column {name!r}{near}")
    return names


def _conditions(
    _: click.Context, __: click.Parameter, values: tuple[str, ...]
) -> tuple[ColumnCondition, ...]:
    try:
        conditions = tuple(condition(value) for value in values)
    except BadCondition as error:
        raise click.BadParameter(error.in_one_line) from error
    classes = default_classifier().catalog.classes
    for one in conditions:
        for value in one.values if one.column == "wait" else ():
            if value is not None and value not in classes:
                near = did_you_mean(value, classes) or f"; there are: {', '.join(classes)}"
                raise click.BadParameter(f"unknown class {value!r}{near}")
    return conditions


def _names() -> Mapping[str, str]:
    return dict.fromkeys(COLUMNS, "")


def _starts() -> Mapping[str, str]:
    """Return completions for ``--where``: each column, and each condition on a wait class."""
    classes = default_classifier().catalog.classes
    return dict.fromkeys((f"{name}=" for name in COLUMNS), "") | {
        f"wait={name}": one.about for name, one in classes.items()
    }


def _dir_option(function: Any) -> Any:
    return click.option(
        "-d",
        "--dir",
        "folder",
        type=click.Path(file_okay=False, path_type=Path),
        default=Path(HistorySettings().directory),
        show_default=True,
        metavar="DIR",
        help="Folder of the history, or of files copied from it.",
    )(function)


@click.group("history", cls=_ReportGroup, epilog=_EPILOG)
def command() -> None:
    """Show what busy threads did over the past hours or days: statements, waits, users, stacks.

    The agent stores one sample per second of each busy thread. Database time is the sum of the times for
    which client threads were busy. Divided by the time observed, it is the average number of active sessions.
    """


@command.command(_DEFAULT, epilog=_REPORT_EPILOG)
@click.argument("span", type=Duration(1), required=False)
@click.option("--from", "begin", type=Moment(), metavar="TIME", help="Start: 14:05, -15m, 2026-01-31T14:05.")
@click.option("--to", "end", type=Moment(), metavar="TIME", help="End, in the same forms.  [default: now]")
@click.option("--server", "servers", multiple=True, metavar="NAME", help="Only this server (repeatable).")
@click.option(
    "--by",
    callback=_columns,
    default="digest,wait",
    show_default=True,
    shell_complete=completes(_names),
    metavar="COLUMN,…",
    help=f"Group by these columns: {', '.join(COLUMNS)}.",
)
@click.option(
    "--where",
    "where",
    callback=_conditions,
    multiple=True,
    shell_complete=completes(_starts),
    metavar="COLUMN=VALUE,…",
    help="Only samples with one of these values (-: unknown). May be repeated; all conditions must be met.",
)
@click.option("-a", "--all", "all_threads", is_flag=True, help="Include the server's own threads.")
@click.option(
    "-l",
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"Show at most N groups.  [default: {_LIMIT}; JSON: all]",
)
@click.option(
    "--flame",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a flame graph (SVG) by wait class and stack.",
)
@_dir_option
@full_option
@json_option
def report(
    span: float | None, begin: float | None, end: float | None, servers: tuple[str, ...], by: tuple[str, ...],
    where: tuple[ColumnCondition, ...], all_threads: bool, limit: int | None, flame: Path | None,
    folder: Path, full: bool, as_json: bool,
) -> None:  # fmt: skip
    """Show database time and average active sessions, grouped by any columns.

    SPAN is how far to look back from --to, such as 15m, 6h or 7d; the default is 1h. Each line shows the
    seconds that a group's threads were busy, the share of the total, and the average number of busy threads.
    """
    if span is not None and begin is not None:
        raise click.UsageError("cannot use SPAN with --from: use --from and --to")
    if flame is not None and as_json:
        raise click.UsageError("cannot use --json with --flame")
    until = time.time() if end is None else end
    since = until - (span or 3_600.0) if begin is None else begin
    if since >= until:
        raise click.UsageError("the start is not before the end")
    if servers:
        where = (*where, ColumnCondition("server", servers))
    question = Question(since, until, ("wait", "stack") if flame else by, where, all_threads)
    history = SessionHistory(folder)
    with limited_memory():
        answer = history.ask(question)
    if not answer.observed:
        raise _not_observed(history, question)
    groups = answer.groups if flame or (as_json and limit is None) else answer.groups[: limit or _LIMIT]
    with limited_memory():
        history.explain(answer, question, groups)
    if flame is not None:
        with open_sink(flame) as sink:
            sink.raw(history_text.flame_graph(answer, question).encode())
        console.line(f"{history_text.headline(answer, question)} -> {flame}", err=True)
    elif as_json:
        console.document(document(answer, groups, question))
    else:
        console.lines(history_text.lines(answer, groups, question, terminal_width(), full=full))


@command.command("sql")
@click.argument("statement")
@_dir_option
@json_option
def sql(statement: str, folder: Path, as_json: bool) -> None:
    """Run a SELECT statement on the history with DuckDB 1.2 or newer, which must be installed.

    The views are samples, snapshots, stacks, digests and blockers; docs/history.md describes their columns.

    \b
    Examples:
      innoscope history sql "SELECT user, wait, sum(weight) FROM samples GROUP BY ALL ORDER BY 3 DESC"
      innoscope history sql "SELECT text, sum(weight) FROM samples JOIN digests USING (digest) GROUP BY 1"
      innoscope history sql "SELECT date_trunc('minute', taken_at) AS minute, sum(weight) / 60 AS sessions
                             FROM samples GROUP BY 1 ORDER BY 1"
    """
    with limited_memory():
        headings, rows, notes = history_sql.query(SessionHistory(folder), statement)
    if as_json:
        console.document([dict(zip(headings, map(_plain, row), strict=True)) for row in rows])
    else:
        cells = [["NULL" if value is None else str(value) for value in row] for row in rows]
        console.lines(table(headings, cells, width=terminal_width()))
    console.lines((f"note: {note}" for note in notes), err=True)


def _plain(value: Any) -> Any:
    """Return a value that JSON can represent."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value if isinstance(value, str | int | float | None) else str(value)


def _not_observed(history: SessionHistory, question: Question) -> InnoscopeError:
    begin, end = (_shown(moment) for moment in (question.begin, question.end))
    first, last = (_shown(moment) for moment in history.span)
    return InnoscopeError(
        f"nothing was observed from {begin} to {end}",
        remedy=f"the history has hours from {first} to {last}; does the sensor run? innoscope probes status",
    )


def _shown(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(moment))
