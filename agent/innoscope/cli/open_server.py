"""Options for snapshots, the snapshot engine of a server, and downloads of its debug files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from innoscope.common import console
from innoscope.sampling.engine import MOST_BYTES, Engine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from innoscope._native import ModuleInfo
    from innoscope.target.model import Target

#: Methods that stop no threads, in order of preference.
STOPPING_NOTHING: Final = ("bpf", "bpf-nosleep", "procfs")

F = TypeVar("F", bound="Callable[..., Any]")


@dataclass(frozen=True, slots=True)
class How:
    """Options for snapshots.

    ``debug_dirs`` are searched before /usr/lib/debug. ``fetch`` allows downloads from debuginfod. With
    ``repeated``, the size of each snapshot is limited; otherwise, the snapshot is complete.
    """

    method: str = "auto"
    inlines: bool = False
    kernel: bool = False
    debug_dirs: tuple[Path, ...] = ()
    fetch: bool = True
    repeated: bool = False


def debug_options(function: F) -> F:
    """Add ``--debug-dir`` and ``--no-debuginfod``, passed as ``debug_dirs`` and ``no_debuginfod``."""
    for option in (
        click.option(
            "--no-debuginfod",
            is_flag=True,
            help="Do not download debug files, even if DEBUGINFOD_URLS is set.",
        ),
        click.option(
            "--debug-dir",
            "debug_dirs",
            multiple=True,
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            metavar="DIR",
            help="Also search this directory for debug files, laid out like /usr/lib/debug "
            "(may be repeated).",
        ),
    ):
        function = option(function)
    return function


def method_options(function: F) -> F:
    """Add ``--method``, passed as ``method``, and the options of ``debug_options``."""
    option = click.option(
        "-m",
        "--method",
        type=click.Choice(["auto", *STOPPING_NOTHING, "ptrace"]),
        default="auto",
        show_default=True,
        help="How to copy stacks. auto: the first of bpf, bpf-nosleep and procfs that works; these stop "
        "nothing. ptrace stops each thread for microseconds.",
    )
    return option(debug_options(function))


def open_engine(target: Target, how: How) -> tuple[Engine, tuple[str, ...]]:
    """Create the engine, and download debug files if the user allows it. Return the engine and notes.

    Raise NoRights or KernelUnable if snapshots are not supported.
    """

    def build(debug_files: Mapping[str, str] | None = None) -> Engine:
        return Engine(
            target,
            method=how.method,
            inlines=how.inlines,
            kernel=how.kernel,
            debug_files=debug_files,
            debug_dirs=tuple(map(str, how.debug_dirs)),
            most_bytes=MOST_BYTES if how.repeated else None,
        )

    engine = build()
    files, notes = fetched(lambda: engine.modules(), how)
    return (build(files) if files else engine), notes


def fetched(modules: Callable[[], list[ModuleInfo]], how: How) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """Download debug files if the user allows it. Return their paths by build-id, and notes."""
    if not how.fetch or not os.environ.get("DEBUGINFOD_URLS"):
        return {}, ()
    # Imported here: urllib takes 30 ms and 7 MB to import, and is needed only with DEBUGINFOD_URLS.
    from innoscope.target.symbols import debuginfod

    found = debuginfod.fetch(modules(), debuginfod.DebuginfodSettings.of(os.environ), download_progress())
    return found.files, found.notes


def download_progress() -> Callable[[str, int, int | None], None] | None:
    """Return a function that shows download progress on standard error.

    Return None if standard error is not a terminal.
    """
    if not console.shows_progress():
        return None

    def show(name: str, done: int, total: int | None) -> None:
        of = f" of {total / 1e6:,.0f}" if total else ""
        if total and done >= total:
            console.clear_progress()
        else:
            console.progress(f"debuginfod: {name} {done / 1e6:,.0f}{of} MB; Ctrl-C continues without")

    return show
