"""``innoscope diagnose``: from a stall to its cause, in ten seconds."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING

import click

from innoscope.cli.common import json_option, sql_options, target_options

if TYPE_CHECKING:
    from collections.abc import Callable

_PATIENCE_S = 2.0  # progress is shown when it takes longer

_EPILOG = """\b
Examples:
  innoscope diagnose                        look for 10 s at the only server, then say what is wrong
  innoscope diagnose --pid 4242 --seconds 30
  innoscope diagnose --no-sql               a server that hangs or refuses connections
  innoscope diagnose --no-probes            looks, memory and SQL only
  innoscope diagnose --json | jq -r '.findings[0].name'

\b
Exit codes: 0 nothing wrong, 18 something was found, 3 no or several servers, 4 the server ended, 5 not a
server.  Findings and what they rest on: docs/diagnose.md; JSON: docs/json.md.
"""

#: For scripts: a finding is no failure of the command, and has a status of its own.
FOUND = 18


@click.command("diagnose", epilog=_EPILOG)
@target_options
@click.option(
    "-s",
    "--seconds",
    type=click.FloatRange(1, 600),
    default=10.0,
    show_default=True,
    help="How long to look.",
)
@click.option("--no-sql", is_flag=True, help="Ask the server nothing.")
@click.option("--no-probes", is_flag=True, help="Attach no eBPF probes.")
@sql_options
@json_option
def command(
    pid: int | None, socket: str | None, port: int | None, seconds: float, no_sql: bool, no_probes: bool,
    defaults_file: str | None, user: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Look at one server for some seconds and say what is wrong, why, and what to do about it.

    Stacks, probes, memory, SQL and /proc, as far as each is to be had; nothing is stopped or changed.
    """
    from innoscope.diagnose.gathering import Gathering, Sources
    from innoscope.diagnose.judging import judge
    from innoscope.diagnose.words import record, text
    from innoscope.target.discover import find_one

    target = find_one(pid, socket, port)
    sources = Sources(not no_sql, not no_probes, defaults_file, user)
    with contextlib.closing(Gathering(target, sources)) as gathering:
        try:
            evidence = gathering.run(seconds, _progress(seconds))
        finally:
            _clear()
        verdict = judge(evidence)
        if as_json:
            click.echo(json.dumps(record(evidence, verdict), ensure_ascii=False))
        else:
            click.echo("\n".join(text(evidence, verdict)))
        sys.stdout.flush()  # before the probes are taken off
    if verdict.findings:
        raise click.exceptions.Exit(FOUND)


def _progress(seconds: float) -> Callable[[float], None]:
    """One line on stderr, once a second; nothing when nobody watches."""
    if not sys.stderr.isatty() or seconds <= _PATIENCE_S:
        return lambda _: None

    def show(gone_by: float) -> None:
        sys.stderr.write(f"\r\x1b[Klooking: {gone_by:.0f} of {seconds:g} s")
        sys.stderr.flush()

    return show


def _clear() -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
