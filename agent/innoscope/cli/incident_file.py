"""Print an incident file, for `diagnose FILE` and `incidents open`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from innoscope.common import console
from innoscope.common.errors import ExitCode
from innoscope.diagnose.incident import files
from innoscope.diagnose.incident import text as incident_text

if TYPE_CHECKING:
    from pathlib import Path

    from innoscope.diagnose.verdict import Verdict

#: The parts of a file that can be printed.
PARTS: Final = ("findings", "stacks", "folded", "metrics", "status", "variables")


def show_file(file: Path, show: str, *, as_json: bool, full: bool) -> ExitCode:
    """Print the findings or another part of an incident file; return the exit code for its findings."""
    if as_json and show != "findings":
        raise click.UsageError(f"cannot use --json with --show {show}: zcat {file} | jq .capture")
    capture = files.load(file)
    if show != "findings":
        console.lines(incident_text.part(capture, show))
        return ExitCode.SUCCESS
    lines, document, verdict = incident_text.findings(file, capture, full=full)
    if as_json:
        console.document(document)
    else:
        console.lines(lines)
    return exit_code(verdict)


def exit_code(verdict: Verdict) -> ExitCode:
    """Return the exit code of ``diagnose`` for a verdict."""
    if verdict.findings:
        return ExitCode.FOUND
    return ExitCode.SUCCESS if verdict.nothing_wrong else ExitCode.CANNOT_TELL
