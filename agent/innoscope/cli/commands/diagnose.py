"""``innoscope diagnose``: collect evidence for a few seconds, and report the causes of a stall."""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from innoscope.cli.common import full_option, json_option, source_options, sql_options, target_options
from innoscope.cli.incident_file import PARTS, exit_code, show_file
from innoscope.cli.parameters import seconds_option
from innoscope.common import console
from innoscope.common.errors import ExitCode
from innoscope.diagnose.collect import EvidenceCollector, Sources
from innoscope.diagnose.incident import capture as incident_capture
from innoscope.diagnose.incident import files
from innoscope.diagnose.incident.facts_fetcher import FactsFetcher
from innoscope.diagnose.incident.files import check_free
from innoscope.diagnose.text import record, text
from innoscope.diagnose.verdict import judge
from innoscope.target.discover import find_one

if TYPE_CHECKING:
    from collections.abc import Callable

    from innoscope.diagnose.evidence import Evidence
    from innoscope.diagnose.incident.model import Capture
    from innoscope.diagnose.verdict import Verdict
    from innoscope.target.model import Target

_PATIENCE_S = 2.0  # seconds; progress is shown only if collecting takes longer than this

_EPILOG = """\b
Examples:
  innoscope diagnose                        collect evidence from the only server for 10 s, then report
  innoscope diagnose --pid 4242 --seconds 30
  innoscope diagnose --no-sql               for a server that hangs or refuses connections
  innoscope diagnose --no-probes            snapshots, memory and SQL only
  innoscope diagnose --json | jq -r '.findings[0].name'
  innoscope diagnose --save stall.innoscope
                                            also write the evidence to a file, without secrets or literals
  innoscope diagnose stall.innoscope        the same findings, on any machine
  innoscope diagnose stall.innoscope --show status
  innoscope diagnose stall.innoscope --show folded | flamegraph.pl > stall.svg

\b
Exit codes: 0 no findings, 18 there are findings, 21 no findings but also no snapshots of the threads,
3 no server, or several, 4 the server exited, 5 not a server, 9 a damaged file, 12 the file could not be
written.  More: docs/diagnose.md; JSON: docs/json.md.
"""


@click.command("diagnose", epilog=_EPILOG)
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@target_options
@seconds_option(1, 600, "How long to collect evidence, 1s to 10m.")
@source_options
@sql_options
@click.option(
    "--save",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also write all evidence to this file, readable only by you. If FILE is a directory, a file name is "
    "generated. An existing file is never overwritten.",
)
@click.option(
    "--show",
    type=click.Choice(PARTS),
    help="Print this part of FILE instead of the findings.",
)
@full_option
@json_option
@click.pass_context
def command(
    context: click.Context, file: Path | None, pid: int | None, socket: str | None, port: int | None,
    seconds: float, no_sql: bool, no_probes: bool, defaults_file: str | None, user: str | None,
    save: Path | None, show: str | None, full: bool, as_json: bool,
) -> None:  # fmt: skip
    """Collect evidence for a few seconds, and report what is wrong with a server, why, and how to fix it.

    Evidence comes from stacks, probes, memory, SQL and /proc, if they are available.
    The server is neither stopped nor changed.

    FILE is an incident file written by --save or by `innoscope watch`. With FILE, no server is needed: the
    rules of this version are applied to the evidence in the file.
    """
    if file is not None:
        _only_for_a_server(context, file)
        code = show_file(file, show or "findings", as_json=as_json, full=full)
    elif show is not None:
        raise click.UsageError("--show requires an incident file: innoscope diagnose FILE --show …")
    else:
        target = find_one(pid, socket, port)
        sources = Sources(not no_sql, not no_probes, defaults_file, user, all_probes=save is not None)
        report = _Report(as_json, full)
        code = _observe(target, sources, seconds, save, report)
    if code is not ExitCode.SUCCESS:
        raise click.exceptions.Exit(code)


def _only_for_a_server(context: click.Context, file: Path) -> None:
    """Raise UsageError if an option is given that applies only to a live server."""
    for parameter in context.command.params:
        name = parameter.name or ""
        given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if given and name not in ("file", "show", "full", "as_json"):
            raise click.UsageError(
                f"cannot use {_long_name(parameter)} with the file {file}: it requires a live server"
            )


def _long_name(parameter: click.Parameter) -> str:
    return next(name for name in parameter.opts if name.startswith("--"))


@dataclass(frozen=True, slots=True)
class _Report:
    """Prints findings as text or as JSON."""

    as_json: bool
    full: bool

    def show(self, evidence: Evidence, verdict: Verdict) -> None:
        """Print the findings."""
        if self.as_json:
            console.document(record(evidence, verdict))
        else:
            console.lines(text(evidence, verdict, full=self.full))


def _observe(
    target: Target, sources: Sources, seconds: float, save: Path | None, report: _Report
) -> ExitCode:
    """Print the findings of a server; return the exit code."""
    keeping = _Keeping(target, save, report) if save else None
    if keeping:
        sources = dataclasses.replace(sources, also=keeping.fetcher)
    with contextlib.closing(EvidenceCollector(target, sources)) as collector:
        try:
            evidence = collector.run(seconds, _progress(seconds))
        finally:
            console.clear_progress()
        if keeping:
            verdict = keeping.take(evidence)
        else:
            verdict = judge(evidence)
            report.show(evidence, verdict)
    return exit_code(verdict)


class _Keeping:
    """Prints the findings, and collects and writes the additional data for ``--save``."""

    def __init__(self, target: Target, path: Path, report: _Report) -> None:
        self._path, self._report = path, report
        self.fetcher = FactsFetcher(target)
        check_free(path)  # fail before collecting, not after

    def take(self, evidence: Evidence) -> Verdict:
        """Print the findings, write the file, and print its path. Raise CannotWrite if writing fails."""
        capture, verdict = incident_capture.make_capture(evidence, self.fetcher.fetched)
        self._report.show(capture.evidence, verdict)
        path = self._write(capture)
        if not self._report.as_json:
            console.line()
        message = f"saved to {path} ({path.stat().st_size:,} bytes); anywhere: innoscope diagnose {path}"
        console.line(message, err=self._report.as_json)
        return verdict

    def _write(self, capture: Capture) -> Path:
        path = self._path / files.name_for(capture) if self._path.is_dir() else self._path
        files.save(path, capture)
        return path


def _progress(seconds: float) -> Callable[[float], None]:
    """Return a function that shows progress on standard error, if that is a terminal."""
    if not console.shows_progress() or seconds <= _PATIENCE_S:
        return lambda _: None

    def show(gone_by: float) -> None:
        console.progress(f"collecting: {gone_by:.0f} of {seconds:g} s")

    return show
