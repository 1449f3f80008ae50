"""Check command lines of ``innoscope`` that dashboards and runbooks show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from innoscope.cli.main import cli
from innoscope.sampling.classify import default_classifier
from innoscope.toggles import catalog

if TYPE_CHECKING:
    from collections.abc import Sequence

_OF_A_TOGGLE = ("set", "plan", "show")


def check_command(words: Sequence[str]) -> None:
    """Raise if innoscope would refuse this command line, or if it names an unknown toggle or wait class.

    If a text only mentions a command without arguments, required arguments are not checked.
    """
    command: click.Command = cli
    rest = list(words)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        found = command.get_command(click.Context(command), rest.pop(0))
        assert found is not None, f"unknown command: {words}"
        command = found
    if rest in (["--help"], ["--version"]):
        return
    if rest:
        command.make_context("innoscope", [*rest])
    if command.name in _OF_A_TOGGLE and rest and rest[0] != "NAME":
        assert rest[0] in catalog.load(), f"unknown toggle: {words}"
    if "--wait" in rest:
        assert rest[rest.index("--wait") + 1] in default_classifier().catalog.classes, words
