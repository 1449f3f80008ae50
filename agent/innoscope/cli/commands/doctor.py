"""``innoscope doctor``: check which features work on this host, and print remedies for those that do not."""

from __future__ import annotations

import click

from innoscope.cli.common import json_option, sql_options, target_options
from innoscope.cli.doctor import host, report, server
from innoscope.common import console
from innoscope.target.credentials import LoginOptions
from innoscope.target.discover import find_one, survey


@click.command("doctor")
@target_options
@sql_options
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    pid: int | None,
    socket: str | None,
    port: int | None,
    defaults_file: str | None,
    user: str | None,
    as_json: bool,
) -> None:
    """Check which features work on this host and its servers, and print remedies for those that do not.

    Without --pid, --socket or --port, all servers are checked. Nothing is changed or stopped.

    \b
    Examples:
      sudo innoscope doctor                 the host, and all servers on it
      sudo innoscope doctor --pid 4242      the host, and one server
      sudo innoscope doctor --json | jq -r '.host[] | select(.status != "ok") | .remedy'

    \b
    Exit codes:
       0  stacks work on every server that was checked
       3  no server is running (the host was checked)
      10  stacks work only with --method ptrace, which stops threads
      11  stacks do not work
    """
    chosen = pid is not None or socket is not None or port is not None
    targets, ignored = ([find_one(pid, socket, port, readable=False)], ()) if chosen else survey()
    account = LoginOptions(defaults_file, user)
    result = report.DoctorReport(
        host=host.examine(host.DoctorHost()),
        targets=targets,
        servers=[server.examine(target, account) for target in targets],
        ignored=ignored,
    )
    if as_json:
        console.document(report.document(result), indent=2)
    else:
        console.lines(report.text(result))
    ctx.exit(int(result.verdict))
