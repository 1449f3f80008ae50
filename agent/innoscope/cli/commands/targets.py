"""``innoscope targets``: list the servers on this host."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from innoscope.cli.common import json_option, table, terminal_width
from innoscope.common import console
from innoscope.target.data_directory import duplicates
from innoscope.target.discover import describe_ignored, none_found, survey
from innoscope.target.proc import ProcFs
from innoscope.target.symbols import packs

if TYPE_CHECKING:
    from innoscope.target.model import Target

_HEADINGS = ("PID", "SERVER", "THREADS", "SOCKET", "PORT", "DATADIR", "SYMBOLS", "NOTES")
_RIGHT = frozenset({"PID", "THREADS", "PORT"})


@click.command("targets")
@json_option
def command(as_json: bool) -> None:
    """List the MySQL and MariaDB servers on this host, including those in containers and chroots.

    SYMBOLS is the source of function names: symtab (the server's own), debug-file, symbol-pack, debugdata,
    dynsym (exported names only) or none. Processes that have a server's name, but run as a user that is not
    allowed, are listed as ignored, with the entry to add to /etc/innoscope/servers.toml.

    \b
    Examples:
      sudo innoscope targets                            all servers, with versions and symbols
      sudo innoscope targets --json | jq '.[].pid'

    \b
    Exit codes: 3 no server is running. All codes: docs/cli.md.
    """
    targets, ignored = survey()
    if as_json:
        document = [target.document() for target in targets]
        document += [asdict(one) | {"ignored": str(one)} for one in ignored]
        console.document(document, indent=2)
    else:
        firsts = duplicates(ProcFs(), targets)
        rows = [_row(target, firsts.get(target.pid)) for target in targets]
        console.lines(table(_HEADINGS, rows, right=_RIGHT, width=terminal_width()))
        console.lines(describe_ignored(ignored) if targets else ())
    if not targets:
        raise none_found(ignored)


def _row(target: Target, first: int | None) -> tuple[str, ...]:
    number = ".".join(map(str, target.version)) or "?"
    remarks = notes(target)
    if first is not None:
        remarks.append(f"process {first} uses the same data directory: not watched")
    return (
        str(target.pid),
        f"{target.flavour} {number}",
        str(target.threads),
        target.socket or "",
        str(target.port or ""),
        target.datadir or "",
        target.symbols,
        "; ".join(remarks),
    )


def notes(target: Target) -> list[str]:
    """Return notes on a server, for example on its container or a replaced executable."""
    found = []
    if target.deleted:
        found.append("executable was replaced")
    if target.container and "," not in target.container and len(target.container) == 12:
        found.append(f"container {target.container}")
    elif target.container:
        found.append(f"own namespaces: {target.container}")
    if target.root != "/":
        found.append(f"chroot {target.root}")
    if target.build_id is None and target.version_from == "unknown":
        found.append("runs as another user: run as root for version and symbols")
    lacking = target.symbols not in ("symtab", "debug-file")
    if lacking and (refused := packs.problem(target)):
        found.append(refused)
    return found
