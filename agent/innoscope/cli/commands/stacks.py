"""``innoscope stacks``: print the stacks of all threads of a server without stopping it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from innoscope.cli.common import sql_options, target_options
from innoscope.cli.open_server import How, method_options, open_engine
from innoscope.cli.parameters import Duration
from innoscope.cli.report_options import chosen_format, filter_options, format_options, frame_options, write
from innoscope.common import console
from innoscope.memory.statements.attribution import MOST_BYTES, Attribution, may_show_text
from innoscope.sampling.fold import Filter, StackReport
from innoscope.sampling.render.json import line
from innoscope.sampling.render.sink import open_sink
from innoscope.sampling.render.text import Detail
from innoscope.sampling.snapshot_series import take_snapshots
from innoscope.target.discover import find_one
from innoscope.target.unanswered import Unanswered

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from innoscope.sampling.model import Snapshot
    from innoscope.sampling.render.sink import AtomicFile, Stdout
    from innoscope.target.model import Query, Target

_PATIENCE_S = 2.0  # seconds after which progress is shown

_EPILOG = """\b
Examples:
  innoscope stacks                              the only server on this host, most frequent stack first
  innoscope stacks --all --full                 also idle stacks, with functions of the C library
  innoscope stacks --by wait                    by wait class, with the three top stacks of each class
  innoscope stacks --by latch                   by the mutex or rw-lock that threads wait for
  innoscope stacks --wait row_lock --queries    threads that wait for a row lock, with their statements
  innoscope stacks --statements --by thread     with connection, user, schema and statement, without SQL
  innoscope stacks --grep btr_cur               stacks with a function whose name contains btr_cur
  innoscope stacks --count 60 --interval 1 --format html --output minute.html
  innoscope stacks --format pprof -o stacks.pb.gz && go tool pprof -top stacks.pb.gz

\b
Exit codes: 3 no server, or several, 4 the server exited (what was collected is printed), 5 not a server,
6 no privileges, 7 the kernel does not support it, 9 a damaged file, 20 a debugger is attached (ptrace).
Wait classes: docs/waits.md; JSON: docs/json.md.
"""


@click.command("stacks", epilog=_EPILOG)
@target_options
@format_options
@click.option(
    "-n",
    "--count",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of snapshots; Ctrl-C ends early and prints the snapshots taken so far.",
)
@click.option("-i", "--interval", type=Duration(0.01), help="Time between snapshots.  [default: 1s]")
@filter_options
@click.option("-q", "--queries", is_flag=True, help="Show the statement of each thread, queried over SQL.")
@click.option(
    "--statements",
    is_flag=True,
    help="Show the statement of each thread, read from the server's memory without SQL.",
)
@click.option(
    "--statement-length",
    type=click.IntRange(1, MOST_BYTES),
    default=160,
    show_default=True,
    metavar="BYTES",
    help=f"Cut the texts of --statements to this length, at most {MOST_BYTES:,}.",
)
@sql_options
@frame_options
@method_options
def command(
    pid: int | None, socket: str | None, port: int | None, by: str | None, show_all: bool, full: bool,
    form: str | None, as_json: bool, output: Path | None, count: int, interval: float | None,
    waits: tuple[str, ...], grep: str | None, limit: int | None, queries: bool, statements: bool,
    statement_length: int, defaults_file: str | None, user: str | None, inlines: bool, kernel: bool,
    method: str, debug_dirs: tuple[Path, ...], no_debuginfod: bool,
) -> None:  # fmt: skip
    """Show the stacks of all threads of a server, without stopping the server.

    The first line shows the number of threads in each wait class, how trustworthy the stacks are, and whether
    threads were stopped. One line per stack follows, most threads first, from the server's innermost function
    outwards. Idle stacks are hidden unless --all, --wait or --grep selects them.
    """
    form = chosen_format(form, as_json, by, output)
    if interval is not None and count == 1:
        raise click.UsageError("--interval requires --count, the number of snapshots")
    if statements and queries:
        raise click.UsageError("--statements reads from memory what --queries asks over SQL: use one of them")
    if statements and method == "ptrace":
        raise click.UsageError("--statements cannot be used with --method ptrace, which stops threads")

    target = find_one(pid, socket, port)
    report = StackReport(target, Filter(waits, grep))
    with open_sink(output) as sink:
        how = How(method, inlines, kernel, debug_dirs, fetch=not no_debuginfod, repeated=count > 1)
        engine, notes = open_engine(target, how)
        report.notes |= dict.fromkeys(notes)
        shown = statement_length if may_show_text(target.pid) else 0
        error = take_snapshots(
            Attribution(target, engine, shown) if statements else engine,
            report,
            count=count,
            interval_s=interval or 1.0,
            fetch_queries=_asker(target, defaults_file, user) if queries else None,
            each=_json_writer(sink) if form == "json" else None,
            progress=_progress(count) if count > 1 else None,
        )
        detail = Detail(idle=show_all or bool(report.wanted), libraries=full or kernel)
        write(report, sink, form, by or "stack", limit, detail)
    if error is not None:
        raise error


def _asker(target: Target, defaults_file: str | None, user: str | None) -> Callable[[], Mapping[int, Query]]:
    """Return a function that queries the threads' statements. It connects on the first call."""
    from innoscope.target import sql  # only for --queries: importing PyMySQL takes 40 ms and 8 MB

    connection: list[Any] = []
    unanswered = Unanswered()

    def ask() -> Mapping[int, Query]:
        if not connection:
            connection.append(sql.connect(target, defaults_file, user, unanswered=unanswered))
        return sql.queries(target, connection[0])

    return ask


def _json_writer(sink: Stdout | AtomicFile) -> Callable[[Snapshot], None]:
    return lambda snapshot: sink.line(line(snapshot))


def _progress(count: int) -> Callable[[int], None] | None:
    """Return a function that shows the number of snapshots on standard error; None without a terminal."""
    if not console.shows_progress():
        return None
    started = time.monotonic()

    def show(number: int) -> None:
        if number == count:
            console.clear_progress()
        elif time.monotonic() - started > _PATIENCE_S:
            console.progress(f"{number:,} of {count:,} snapshots; Ctrl-C prints those that were taken")

    return show
