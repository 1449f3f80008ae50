"""Options and output formats of the commands that print folded stacks: ``stacks`` and ``profile``."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from innoscope.cli.parameters import completes, did_you_mean
from innoscope.sampling.classify import default_classifier
from innoscope.sampling.render import BINARY, FORMATS, pprof, render

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from innoscope.sampling.fold import StackReport
    from innoscope.sampling.render.sink import AtomicFile, Stdout
    from innoscope.sampling.render.text import Detail

F = TypeVar("F", bound="Callable[..., Any]")


def _regex(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    try:
        re.compile(value or "")
    except re.error as error:
        raise click.BadParameter(f"{value!r} is not a regular expression: {error}") from error
    return value


def _class_names() -> Mapping[str, str]:
    return {name: one.about for name, one in default_classifier().catalog.classes.items()}


def _classes(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Convert wait classes (labels, or ids with - or _) to ids. Raise BadParameter if one is unknown."""
    if not values:
        return ()

    classes = default_classifier().catalog.classes
    known = {known.label: name for name, known in classes.items()} | {name: name for name in classes}
    found = tuple(known.get(value) or known.get(value.replace("-", "_")) for value in values)
    for value, name in zip(values, found, strict=True):
        if name is None:
            near = did_you_mean(value, classes) or f"; there are: {', '.join(classes)}"
            raise click.BadParameter(f"unknown class {value!r}{near}")
    return tuple(name for name in found if name)


def format_options(function: F) -> F:
    """Add ``--by``, ``--all``, ``--full``, ``--format``, ``--json`` and ``--output``.

    They are passed as ``by``, ``show_all``, ``full``, ``form``, ``as_json`` and ``output``.
    """
    for option in (
        click.option(
            "-o",
            "--output",
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="Write to this file atomically.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Same as --format json."),
        click.option(
            "-f", "--format", "form", type=click.Choice(FORMATS), help="Output format.  [default: text]"
        ),
        click.option(
            "--full",
            is_flag=True,
            help="Also show functions of the C library and the kernel at the ends of stacks (text).",
        ),
        click.option(
            "-a",
            "--all",
            "show_all",
            is_flag=True,
            help="Also show idle stacks (text; the other formats always include them).",
        ),
        click.option(
            "--by",
            type=click.Choice(["stack", "wait", "latch", "thread"]),
            help="Group threads by stack, wait class, latch or thread (text).  [default: stack]",
        ),
    ):
        function = option(function)
    return function


def filter_options(function: F) -> F:
    """Add ``--wait``, ``--grep`` and ``--limit``, passed as ``waits``, ``grep`` and ``limit``."""
    for option in (
        click.option(
            "-l",
            "--limit",
            type=click.IntRange(min=1),
            metavar="N",
            help="Show at most N stacks, classes or threads.",
        ),
        click.option(
            "-g",
            "--grep",
            callback=_regex,
            metavar="REGEX",
            help="Show only threads with a function, name or statement that matches.",
        ),
        click.option(
            "-w",
            "--wait",
            "waits",
            multiple=True,
            callback=_classes,
            shell_complete=completes(_class_names),
            metavar="CLASS",
            help="Show only threads in this wait class (may be repeated).",
        ),
    ):
        function = option(function)
    return function


def frame_options(function: F) -> F:
    """Add ``--inlines`` and ``--kernel``."""
    for option in (
        click.option("--kernel", is_flag=True, help="Also show kernel functions."),
        click.option(
            "--inlines", is_flag=True, help="Also show inlined functions (needs debug info; slower)."
        ),
    ):
        function = option(function)
    return function


def chosen_format(form: str | None, as_json: bool, by: str | None, output: Path | None) -> str:
    """Return the output format.

    Raise UsageError if options contradict each other, or if a binary format would go to a terminal.
    """
    if as_json and form not in (None, "json"):
        raise click.UsageError(f"cannot use --json with --format {form}")
    form = "json" if as_json else form or "text"
    if by is not None and form != "text":
        raise click.UsageError(f"cannot use --by with --format {form}: only text supports it")
    if form in BINARY and output is None and sys.stdout.isatty():
        raise click.UsageError(f"cannot write {form} to a terminal: use --output FILE")
    return form


def write(
    report: StackReport, sink: Stdout | AtomicFile, form: str, by: str, limit: int | None, detail: Detail
) -> None:
    """Write the report in a format other than JSON. For JSON, each command writes its own document."""
    if form == "pprof":
        sink.raw(pprof.encode(report))
    elif form != "json":
        for line in render(report, form, by=by, limit=limit, detail=detail):
            sink.line(line)
