"""``innoscope diff``: compare a server's stacks, metrics and settings at two times."""

from __future__ import annotations

from pathlib import Path

import click

from innoscope.cli.commands.replay import counting
from innoscope.cli.common import full_option, json_option
from innoscope.common import console
from innoscope.common.errors import ExitCode
from innoscope.diagnose.incident import diff, diff_inputs, diff_report
from innoscope.diagnose.incident.files import load

_EPILOG = """\b
Examples:
  innoscope diff healthy.innoscope stall.innoscope
                                        two files written by `innoscope diagnose --save FILE`
  innoscope diff stall.innoscope        a stall and the minute before it, from `innoscope watch`
  innoscope diff monday.json now.json   dumps of `innoscope stacks --count 20 --output FILE --json`
  innoscope diff hour.rec stall.innoscope --json | jq -r '.stacks[0].functions[]'

\b
What is reported:
  threads    the mean number of threads per snapshot, by wait class and by stack, differs by at least one
             thread, 30 % and four standard errors: few or varying snapshots show fewer differences
  metrics    a rate or level has at least doubled or halved, and its values in A and in B do not overlap;
             means need 20 or more events
  variables, findings   any difference, if both files have them; this version's rules are applied to both

\b
Exit codes: 0 no significant difference, 19 differences were printed, 9 a damaged file.
JSON: docs/json.md.
"""

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("diff", epilog=_EPILOG)
@click.argument("a", type=_FILE)
@click.argument("b", required=False, type=_FILE)
@click.option(
    "-l",
    "--limit",
    type=click.IntRange(min=1),
    default=12,
    show_default=True,
    metavar="N",
    help="At most N lines of each kind.",
)
@full_option
@json_option
def command(a: Path, b: Path | None, limit: int, full: bool, as_json: bool) -> None:
    """Show what has appeared, changed or disappeared from A to B.

    Findings, wait classes, stacks, metrics and variables are compared. A and B are incident files, dumps
    (`innoscope stacks --json`), recordings (`innoscope top --record`) or JSON from the agent's /api/stacks.
    Without B, A must be an incident file that contains the time before the stall. Thread counts are means
    over all snapshots, so a single snapshot can be compared with twenty.
    """
    if b is None:
        capture = load(a)
        before, after = diff_inputs.before_of(a, capture), diff_inputs.of_capture(a, capture)
    else:
        with counting("reading") as progress:
            before, after = diff_inputs.open_side(a, progress), diff_inputs.open_side(b, progress)
    found = diff.compare(before, after)
    if as_json:
        console.document(diff_report.record(before, after, found))
    else:
        console.lines(diff_report.text(before, after, found, limit, full=full))
    if found:
        raise click.exceptions.Exit(ExitCode.DIFFERENT)
