"""``innoscope incidents``: list, fetch and show the incident files of many agents."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

import click

from innoscope.cli.common import full_option, json_option, table, terminal_width
from innoscope.cli.incident_file import PARTS, show_file
from innoscope.cli.parameters import CommandGroup, Duration, Moment
from innoscope.cli.steps import step
from innoscope.common import console
from innoscope.common.errors import BadFile, ExitCode, InnoscopeError
from innoscope.daemon.fleet import agents as addresses
from innoscope.daemon.fleet.client import AgentClient, CredentialFiles
from innoscope.daemon.fleet.incidents import AgentIncident, fetch_all, list_all, within
from innoscope.diagnose.watch.folder import is_incident_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from innoscope.daemon.fleet.agents import AgentAddress
    from innoscope.daemon.fleet.incidents import FailedAgent, FetchedIncident

SCHEMA: Final = 1
#: Maximum number of failed agents that are printed; the JSON output contains all of them.
_MAX_FAILURES: Final = 20
_PATH: Final = "/api/incidents"

_EPILOG = """\b
Examples:
  innoscope incidents list                                  of the agent on this host
  innoscope incidents list --agents /etc/prometheus/innoscope/db.yaml --from -1d
  innoscope incidents list -a https://db1:9977 -a https://db2:9977 --basic-auth-file ~/innoscope.password
  innoscope incidents fetch --agents agents.txt --server orders --dir ./stalls
  innoscope incidents open --agents agents.txt              the newest one
  innoscope incidents open 'https://db1:9977/api/incidents?file=stall-mysql-28817-20261122T041211Z.innoscope'

\b
Exit codes: 1 no incident matches, 9 a damaged file, 12 a file cannot be written, 18 `open`: there are
findings, 22 an agent did not answer as expected; the incidents of the other agents are printed. All codes:
docs/cli.md.
More: docs/fleet.md; JSON: docs/json.md.
"""


def _agent_options(function: Any) -> Any:
    for option in (
        click.option(
            "--timeout",
            type=Duration(1, 300),
            default="10s",
            show_default=True,
            metavar="TIME",
            help="Timeout for each request.",
        ),
        click.option("--key-file", type=click.Path(path_type=Path), metavar="FILE", help="Its key."),
        click.option(
            "--cert-file", type=click.Path(path_type=Path), metavar="FILE", help="Client certificate."
        ),
        click.option(
            "--ca-file",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="CA of the agents' certificates.",
        ),
        click.option(
            "--basic-auth-file",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="File with one line, user:password, which is sent to every agent.",
        ),
        click.option(
            "--scheme",
            type=click.Choice(["http", "https"]),
            default="http",
            show_default=True,
            help="For addresses without a scheme.",
        ),
        click.option("--server", metavar="NAME", help="Only this server."),
        click.option(
            "--from", "begin", type=Moment(), metavar="TIME", help="Only since 14:05, -1d, 2026-01-31."
        ),
        click.option(
            "--agents",
            "files",
            multiple=True,
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="File with agents, one per line, or a file_sd file of Prometheus (.yaml, .yml, .json).",
        ),
        click.option(
            "-a",
            "--agent",
            "names",
            multiple=True,
            metavar="URL",
            help=f"An agent, as URL or HOST:PORT (repeatable).  [default: {addresses.LOCAL}]",
        ),
    ):
        function = option(function)
    return function


def _dir_option(function: Any) -> Any:
    return click.option(
        "-d", "--dir", "folder", type=click.Path(file_okay=False, path_type=Path), default=Path("incidents"),
        show_default=True, metavar="DIR", help="Folder for the files, as DIR/HOST_PORT/FILE.",
    )(function)  # fmt: skip


class _Fleet:
    """The agents and the filters that the options select."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.agents = addresses.unique(_named(options) or [addresses.parse(addresses.LOCAL, "http")])
        if (options["cert_file"] is None) != (options["key_file"] is None):
            raise click.UsageError("--cert-file and --key-file must be given together")
        files = (options[name] for name in ("basic_auth_file", "ca_file", "cert_file", "key_file"))
        self.client = AgentClient(CredentialFiles(*files), options["timeout"])
        self._server, self._begin = options["server"], options["begin"]

    def incidents(self) -> tuple[list[AgentIncident], list[FailedAgent]]:
        """Query all agents. Return the incidents that match the filters, and the failures."""
        with step(f"querying {len(self.agents):,} agents"):
            found, failures = list_all(self.client, self.agents)
        return [one for one in found if self._matches(one)], failures

    def fetch(
        self, incidents: Sequence[AgentIncident], folder: Path
    ) -> tuple[list[FetchedIncident], list[FailedAgent]]:
        """Fetch incident files to a folder."""
        with step(f"fetching {len(incidents):,} incident files"):
            return fetch_all(self.client, incidents, folder)

    def _matches(self, one: AgentIncident) -> bool:
        return (self._server is None or one.row.server == self._server) and (
            self._begin is None or one.row.at >= self._begin
        )


@click.group("incidents", cls=CommandGroup, epilog=_EPILOG)
def command() -> None:
    """List, fetch and show the incident files that agents have captured.

    Agents serve incident files only to clients on their own host, or to clients that authenticate.
    """


@command.command("list", epilog=_EPILOG)
@_agent_options
@json_option
def list_command(as_json: bool, **options: Any) -> None:
    """List the incidents of all agents, newest first."""
    found, failures = _Fleet(options).incidents()
    if as_json:
        console.document({"schema": SCHEMA, "incidents": [*map(_record, found)], "errors": _errors(failures)})
    elif found:
        headings = ("TIME", "AGENT", "SERVER", "SCORE", "INCIDENT", "FILE")
        console.lines(
            table(headings, [*map(_row, found)], right=frozenset({"SCORE"}), width=terminal_width())
        )
    else:
        console.line("no incidents")
    _end(failures)


@command.command("fetch", epilog=_EPILOG)
@click.argument("files_wanted", metavar="[FILE]...", nargs=-1)
@_agent_options
@_dir_option
@click.option(
    "--max-mb",
    type=click.IntRange(1),
    default=1024,
    show_default=True,
    help="Fetch at most this many MiB, newest first.",
)
@json_option
def fetch_command(
    files_wanted: tuple[str, ...], folder: Path, max_mb: int, as_json: bool, **options: Any
) -> None:
    """Copy incident files to a folder: all, or only those named. Files that exist are not fetched again."""
    fleet = _Fleet(options)
    found, failures = fleet.incidents()
    wanted = [one for one in found if not files_wanted or one.row.file in files_wanted]
    if not wanted and not failures:
        raise InnoscopeError("no incident matches", remedy="innoscope incidents list")
    wanted, left_out = within(wanted, max_mb << 20)
    fetched, more = fleet.fetch(wanted, folder)
    failures += more
    if as_json:
        rows = [{**_record(one.incident), "path": str(one.path), "new": one.new} for one in fetched]
        console.document({"schema": SCHEMA, "files": rows, "left_out": left_out, "errors": _errors(failures)})
    else:
        console.lines(str(one.path) for one in fetched if one.new)
        new = sum(one.new for one in fetched)
        rest = f", {left_out} left out: --max-mb" if left_out else ""
        console.line(f"{new} fetched, {len(fetched) - new} already in {folder}{rest}", err=True)
    _end(failures)


@command.command("open", epilog=_EPILOG)
@click.argument("file", metavar="[FILE|URL]", required=False)
@_agent_options
@_dir_option
@click.option("--show", type=click.Choice(PARTS), default="findings", help="Print this part of the file.")
@full_option
@json_option
def open_command(
    file: str | None, folder: Path, show: str, full: bool, as_json: bool, **options: Any
) -> None:
    """Fetch one incident file, and show it as `innoscope diagnose FILE` does: the newest, or FILE."""
    if file is not None and "://" in file:
        url, file = _of_url(file)
        if options["basic_auth_file"] is not None:
            _require_known(addresses.parse(url, "https"), options)
        options["names"], options["files"] = (url,), ()
    fleet = _Fleet(options)
    found, failures = fleet.incidents()
    chosen = _one(found, file) if found or not failures else None
    if chosen is not None:
        fetched, more = fleet.fetch([chosen], folder)
        failures += more
        if fetched:
            code = show_file(fetched[0].path, show, as_json=as_json, full=full)
            _report(failures)
            raise click.exceptions.Exit(code)
    _end(failures)


def _one(found: Sequence[AgentIncident], file: str | None) -> AgentIncident:
    """Return the incident with this file name, or the newest one.

    Raise InnoscopeError if there is none, or if several agents have the file.
    """
    matching = [one for one in found if file is None or one.row.file == file]
    if not matching:
        raise InnoscopeError(
            f"no incident {file!r}" if file else "no incident", remedy="innoscope incidents list"
        )
    if file is not None and len(matching) > 1:
        several = ", ".join(one.agent.url for one in matching)
        raise InnoscopeError(
            f"several agents have {file}: {several}", remedy=f"--agent {matching[0].agent.url}"
        )
    return matching[0]


def _of_url(url: str) -> tuple[str, str]:
    """Return the agent and the file of a link in a notification. Raise BadFile if it is another URL."""
    try:
        parts = urlsplit(url)
        names = parse_qs(parts.query, max_num_fields=20).get("file", [])
    except ValueError:
        raise _not_a_link(url) from None
    if parts.path != _PATH or len(names) != 1 or not is_incident_name(names[0]):
        raise _not_a_link(url)
    return f"{parts.scheme}://{parts.netloc}", names[0]


def _require_known(agent: AgentAddress, options: dict[str, Any]) -> None:
    """Raise BadFile if a link names an agent to which the password must not be sent.

    Anyone can post a link. The password is sent only to agents that an option names, to agents on this host,
    and to agents whose certificate was issued by the given CA.
    """
    private_ca = agent.scheme == "https" and options["ca_file"] is not None
    if not private_ca and not agent.is_on_this_host and agent not in _named(options):
        raise BadFile(
            f"the password is not sent to {agent.url}: only the link names this agent",
            remedy=f"if you trust it: --agent {agent.url}",
        )


def _named(options: dict[str, Any]) -> list[AgentAddress]:
    """Return the agents that the options --agent and --agents name."""
    found = [addresses.parse(name, options["scheme"]) for name in options["names"]]
    return found + [agent for file in options["files"] for agent in addresses.load(file, options["scheme"])]


def _not_a_link(url: str) -> BadFile:
    return BadFile(f"{url[:300]!r} is not the URL of an incident file", remedy=f"AGENT{_PATH}?file=FILE")


def _row(one: AgentIncident) -> tuple[str, ...]:
    row = one.row
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.at))
    score = f"{row.score:.0f}" if row.score is not None else ""
    words = row.title or row.trigger or ""
    return at, f"{one.agent.host}:{one.agent.port}", row.server or "", score, words, row.file


def _record(one: AgentIncident) -> dict[str, Any]:
    names = ("file", "at", "bytes", "server", "trigger", "finding", "title", "score", "blocker")
    return {"agent": one.agent.url, **{name: getattr(one.row, name) for name in names}}


def _errors(failures: Sequence[FailedAgent]) -> list[dict[str, Any]]:
    return [{"agent": one.agent.url, "error": one.error.what, "remedy": one.error.remedy} for one in failures]


def _end(failures: Sequence[FailedAgent]) -> None:
    """Print the failures, and exit with AGENT_FAILED if there are any."""
    _report(failures)
    if failures:
        raise click.exceptions.Exit(ExitCode.AGENT_FAILED)


def _report(failures: Sequence[FailedAgent]) -> None:
    """Print the failures to standard error."""
    for one in failures[:_MAX_FAILURES]:
        console.line(console.Colored(f"innoscope: {one.error.what}", console.Color.RED), err=True)
        console.line(f"  {one.error.remedy}", err=True)
    if len(failures) > _MAX_FAILURES:
        console.line(f"innoscope: {len(failures):,} agents failed; --json lists all of them", err=True)
