"""Generate innoscope(1), innoscope-agent.toml(5), and one manual page per command from its help."""

from __future__ import annotations

import datetime
import importlib
import inspect
import re
from typing import TYPE_CHECKING

import click

from distribution.metadata import PACKAGING, ROOT
from innoscope.cli.main import COMMANDS, cli

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from distribution.metadata import Metadata

_EXAMPLES = "Examples:"
_ROW = re.compile(r"\| (\d+) \| (.+) \|")


def write(folder: Path, metadata: Metadata) -> None:
    """Write all pages below ``folder`` (…/share/man)."""
    day = datetime.datetime.fromtimestamp(metadata.time, datetime.UTC).date().isoformat()
    pages = {"innoscope.1": _main(), "innoscope-agent.toml.5": _configuration()}
    pages |= {f"innoscope-{name}.1": _command(name) for name in COMMANDS}
    for name, lines in pages.items():
        title, _, section = name.rpartition(".")
        head = f'.TH {title.upper()} {section} "{day}" "innoscope {metadata.version}" "Innoscope"'
        path = folder / f"man{section}" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([head, *lines]) + "\n")


def _main() -> Iterator[str]:
    context = cli.make_context("innoscope", ["-h"], resilient_parsing=True)
    yield from _named("innoscope", cli.help or "")
    yield from (".SH SYNOPSIS", ".B innoscope", "[OPTIONS] COMMAND [ARGS]...")
    yield from _body(cli, context)
    yield ".SH COMMANDS"
    for name, line in COMMANDS.items():
        yield from (".TP", f".BR innoscope\\-{_text(name)} (1)", _text(line))
    yield ".SH EXIT STATUS"
    for code, meaning in _ROW.findall((ROOT / "docs" / "cli.md").read_text()):
        yield from (".TP", f".B {code}", _text(meaning.replace("`", "")))
    yield from _see_also("innoscope\\-agent.toml (5)", "systemd (1)")


def _command(name: str) -> Iterator[str]:
    command = importlib.import_module(f"innoscope.cli.commands.{name.replace('-', '')}").command
    context = _context(command, f"innoscope {name}")
    yield from _named(f"innoscope-{name}", COMMANDS[name])
    yield ".SH SYNOPSIS"
    yield from _usage(command, context)
    yield from _body(command, context)
    if isinstance(command, click.Group):
        yield ".SH COMMANDS"
        for sub in command.list_commands(context):
            yield from _sub(command.commands[sub], f"innoscope {name} {sub}")
    yield from _see_also("innoscope (1)", "innoscope\\-agent.toml (5)")


def _context(command: click.Command, name: str) -> click.Context:
    """Return a context with the same help options as on the command line."""
    return click.Context(command, info_name=name, help_option_names=cli.context_settings["help_option_names"])


def _sub(command: click.Command, name: str) -> Iterator[str]:
    context = _context(command, name)
    yield f".SS {_text(name)}"
    yield from _usage(command, context)
    for _, lines in _paragraphs(command.help):
        yield from (".PP", *lines)
    yield from _options(command, context)
    for _, lines in _paragraphs(command.epilog):
        yield from (".PP", *lines)


def _configuration() -> Iterator[str]:
    yield from _named("innoscope-agent.toml", "configuration of innoscope agent")
    yield from (
        ".SH DESCRIPTION",
        ".I /etc/innoscope/agent.toml",
        "as shipped, with every key and its default.",
    )
    yield from (".PP", *_verbatim((PACKAGING / "agent.toml").read_text().splitlines()))
    yield from _see_also("innoscope\\-agent (1)")


def _named(name: str, line: str) -> Iterable[str]:
    return ".SH NAME", f"{_text(name)} \\- {_text(line.rstrip('.'))}"


def _usage(command: click.Command, context: click.Context) -> Iterable[str]:
    return f".B {_text(context.info_name or '')}", _text(" ".join(command.collect_usage_pieces(context)))


def _body(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield the description, the options, the examples, and the remaining text below the options."""
    above, below = _paragraphs(command.help), _paragraphs(command.epilog)
    yield ".SH DESCRIPTION"
    for is_example, lines in above:
        if not is_example:
            yield from (".PP", *lines)
    if options := _options(command, context):
        yield from (".SH OPTIONS", *options)
    if examples := [lines for is_example, lines in (*above, *below) if is_example]:
        yield ".SH EXAMPLES"
        for lines in examples:
            yield from (".PP", *lines)
    if rest := [lines for is_example, lines in below if not is_example]:
        yield ".SH NOTES"
        for lines in rest:
            yield from (".PP", *lines)


def _options(command: click.Command, context: click.Context) -> list[str]:
    lines = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            names, description = record
            lines += [".TP", f".B {_text(names)}", _text(description) or "\\&"]
    return lines


def _paragraphs(text: str | None) -> list[tuple[bool, list[str]]]:
    """Return ``(is_example, roff lines)`` per paragraph. Lines after a ``\\b`` line are not refilled."""
    found = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text or "").replace("\f", "")):
        lines = paragraph.strip("\n").splitlines()
        if not lines:
            continue
        if lines[0].strip() != "\b":
            found.append((False, [_text(" ".join(line.strip() for line in lines))]))
        elif lines[1].strip() == _EXAMPLES:
            found.append((True, list(_verbatim(inspect.cleandoc("\n" + "\n".join(lines[2:])).splitlines()))))
        else:
            found.append((False, list(_verbatim(lines[1:]))))
    return found


def _verbatim(lines: Iterable[str]) -> Iterable[str]:
    return ".nf", *(_text(line) or "\\&" for line in lines), ".fi"


def _see_also(*pages: str) -> Iterable[str]:
    yield ".SH SEE ALSO"
    *first, last = (f".BR {page}" for page in pages)
    yield from (f"{one} ," for one in first)
    yield last


def _text(text: str) -> str:
    """Escape text for roff, so that no line is interpreted as a request and hyphens can be copied."""
    plain = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{plain}" if plain.startswith((".", "'")) else plain
