"""``innoscope symbols``: manage symbol packs, which provide symbols on hosts with stripped servers."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from innoscope.cli.common import json_option, table, target_options, terminal_width
from innoscope.cli.open_server import download_progress
from innoscope.cli.parameters import CommandGroup
from innoscope.cli.steps import step
from innoscope.cli.symbol_pack import make, write
from innoscope.common import console
from innoscope.common.errors import BadFile
from innoscope.target.discover import find_all, find_one
from innoscope.target.symbols import installed_packs, pack_source, packs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.target.symbols.installed_packs import PackFile, PackInfo
    from innoscope.target.symbols.pack_source import PackSource

_HEADINGS: Final = ("BUILD-ID", "SERVER", "FUNCTIONS", "VARIABLES", "SIZE", "FITS", "NOTES")
_RIGHT: Final = frozenset({"FUNCTIONS", "VARIABLES", "SIZE"})
_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group("symbols", cls=CommandGroup)
def command() -> None:
    """Make and check symbol packs, which replace debug files on hosts with stripped servers.

    A pack contains the function names and variable addresses of one server build, and takes about 0.5 MB.

    \b
    Examples:
      On a host that has the debug file:
        innoscope symbols export --file mariadbd.debug   make BUILD-ID.pack from a debug file
        innoscope symbols export --pid 4242              make a pack for a running server
      On a host without the debug file:
        sudo install -D -m 644 *.pack -t /etc/innoscope/symbols.d
        innoscope symbols list                           list this host's packs and the matching servers
        innoscope symbols check FILE                     check whether a pack would be accepted

    \b
    Exit codes: 9 a pack or file is damaged, not trusted or of another build, 12 the pack cannot be written.
    All codes: docs/cli.md. Contents of a pack, and which packs are trusted: docs/symbols.md.
    """


@command.command("export")
@target_options
@click.option(
    "--file",
    "file",
    type=_FILE,
    metavar="FILE",
    help="Make the pack from this file instead of a running server.",
)
@click.option(
    "-o", "--output", metavar="PATH", default=".",
    help="File or directory to write to; a path ending in / is a directory.  [default: ./BUILD-ID.pack]",
)  # fmt: skip
@click.option(
    "--server",
    metavar="TEXT",
    help="Flavour and version to store in the pack, if they cannot be read from the file.",
)
@click.option(
    "--debug-dir", "debug_dirs", multiple=True, metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Also search this directory for the debug file, laid out like /usr/lib/debug (may be repeated).",
)  # fmt: skip
@json_option
def export(
    pid: int | None, socket: str | None, port: int | None, file: Path | None, output: str,
    server: str | None, debug_dirs: tuple[Path, ...], as_json: bool,
) -> None:  # fmt: skip
    """Make a pack from a debug file, or for a running server.

    For a running server, the file with the most symbols is used:
    the executable, its debug file, or a file from debuginfod.

    \b
    Examples:
      innoscope symbols export --file /usr/lib/debug/.build-id/4f/9e….debug
      DEBUGINFOD_URLS=https://debuginfod.debian.net innoscope symbols export --pid 4242 -o packs/
    """
    began = time.monotonic()
    origin = _origin(pid, socket, port, file, debug_dirs)
    if server is not None:
        origin = replace(origin, server=server)
    made = make(origin, step)
    path = write(made, output)
    about = _about(path)
    seconds = time.monotonic() - began
    if as_json:
        console.document({"path": str(path), "seconds": round(seconds, 1), **asdict(about)}, indent=2)
        return
    console.line(f"{path}: {_summary(about)}, made in {seconds:.1f} s")
    if path.parent.resolve() != _folder().resolve():
        install = f"sudo install -D -m 644 {path.name} -t {_folder()}"
        console.line(f"copy it to each host that runs this build, and run there: {install}")


@command.command("show")
@click.argument("file", type=_FILE)
@json_option
def show(file: Path, as_json: bool) -> None:
    """Show the server build, the contents and the origin of a pack.

    \b
    Examples:
      innoscope symbols show /etc/innoscope/symbols.d/4f9e….pack
    """
    about = _about(file)
    if as_json:
        console.document({"path": str(file), **asdict(about)}, indent=2)
        return
    for name, value in _facts(about):
        console.line(f"{name:<12}{value}")


@command.command("list")
@json_option
def list_packs(as_json: bool) -> None:
    """List this host's packs and the running servers that match.

    \b
    Examples:
      sudo innoscope symbols list
    """
    found = installed_packs.entries(find_all())
    if as_json:
        console.document([asdict(entry) for entry in found], indent=2)
        return
    if not found:
        folder = installed_packs.folder()
        console.line(f"no symbol packs in {folder}; see innoscope symbols export --help")
        return
    console.lines(table(_HEADINGS, [_row(entry) for entry in found], right=_RIGHT, width=terminal_width()))


@command.command("check")
@click.argument("file", type=_FILE)
@target_options
@json_option
def check(file: Path, pid: int | None, socket: str | None, port: int | None, as_json: bool) -> None:
    """Check that a pack is valid and matches a server.

    A valid pack is complete and trusted. It matches a server if both have the same build-id.

    Without --pid, --socket or --port, list the running servers that the pack matches.

    \b
    Examples:
      innoscope symbols check 4f9e….pack
      sudo innoscope symbols check 4f9e….pack --pid 4242

    \b
    Exit codes: 9 damaged, not trusted, or of another build. All codes: docs/cli.md.
    """
    about = _about(file)
    if pid is None and socket is None and port is None:
        fits = [target.pid for target in find_all() if target.build_id == about.build_id]
    else:
        target = find_one(pid, socket, port)
        if target.build_id != about.build_id:
            raise BadFile(
                f"symbol pack {file}: is for another build: its build-id is {about.build_id}, "
                f"and process {target.pid} runs {target.build_id}",
                remedy="export a pack of the server's build: innoscope symbols export",
            )
        fits = [target.pid]
    if as_json:
        console.document({"path": str(file), "ok": True, "fits": fits, **asdict(about)}, indent=2)
        return
    of = ", ".join(f"pid {each}" for each in fits) or "no running server"
    console.line(f"{file}: valid: {_summary(about)}; fits {of}")


def _origin(
    pid: int | None, socket: str | None, port: int | None, file: Path | None, debug_dirs: tuple[Path, ...]
) -> PackSource:
    if file is None:
        target = find_one(pid, socket, port)
        with step("looking for the debug file"):
            return pack_source.of_server(target, tuple(map(str, debug_dirs)), download_progress())
    if pid is not None or socket is not None or port is not None:
        raise click.UsageError("cannot use --file with --pid, --socket or --port")
    with step(f"reading {file.name}"):
        return pack_source.of_file(file)


def _about(file: Path) -> PackInfo:
    return installed_packs.about(packs.open_pack(str(file)))


def _folder() -> Path:
    return installed_packs.folder()


def _summary(about: PackInfo) -> str:
    return (
        f"{about.server or 'an unnamed server'}, {about.functions:,} functions, "
        f"{about.variables:,} variables, {about.bytes / 1e6:.1f} MB"
    )


def _facts(about: PackInfo) -> Iterator[tuple[str, str]]:
    yield "build-id", about.build_id
    yield "server", about.server or "not known"
    yield "functions", f"{about.functions:,}"
    yield "variables", f"{about.variables:,}"
    yield "described", f"{about.members} members of structures, {about.settings} settings"
    yield "size", f"{about.bytes:,} bytes ({about.unpacked_bytes:,} unpacked)"
    made = [about.made_by and f"by {about.made_by}", about.made_at, about.made_of and f"of {about.made_of}"]
    yield "made", ", ".join(word for word in made if word) or "not known"


def _row(entry: PackFile) -> tuple[str, ...]:
    about = entry.about
    if about is None:
        return (Path(entry.path).stem, "", "", "", "", "", entry.problem or "")
    fits = ", ".join(map(str, entry.fits)) or "none running"
    size = f"{about.bytes / 1e6:.1f} MB"
    numbers = (f"{about.functions:,}", f"{about.variables:,}", size)
    return (about.build_id, about.server or "?", *numbers, fits, entry.problem or "")
