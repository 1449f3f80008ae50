"""Parameter types and shared options: times, deprecated spellings, completion, suggestions, logging."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from innoscope.common import logs, sanitize
from innoscope.common.errors import InnoscopeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    _ParamType = click.ParamType[float]
else:
    _ParamType = click.ParamType  # generic only since click 8.3

F = TypeVar("F", bound="Callable[..., Any]")

_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d|)", re.ASCII)
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,6}))?)?", re.ASCII)
_LONGEST_S = 366 * 86_400.0


class Duration(_ParamType):
    """A duration in seconds, given as ``10``, ``250ms``, ``90s``, ``5m``, ``1h`` or ``1d``."""

    name = "time"

    def __init__(self, least: float = 0.0, most: float = _LONGEST_S) -> None:
        self._least, self._most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the duration in seconds. Fail with a usage error if it is malformed or out of range."""
        if isinstance(value, float):
            return value
        try:
            seconds = parse_duration(value.strip())
        except ValueError:
            self.fail(f"{value!r} is not a duration: use 10 (seconds), 250ms, 90s, 5m, 1h or 1d", param, ctx)
        if not self._least <= seconds <= self._most:
            limits = f"{_shown(self._least)} to {_shown(self._most)}"
            self.fail(f"{value!r} is out of range: {limits}", param, ctx)
        return seconds


class Moment(_ParamType):
    """A Unix time, given as ``now``, ``-15m``, ``14:05`` (local time) or ``2026-01-31T14:05``.

    ``14:05`` is the most recent such time.
    """

    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the Unix time. Fail with a usage error if it is malformed."""
        if isinstance(value, float):
            return value
        try:
            return parse_moment(value.strip(), time.time())
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a time: use now, -15m, 14:05 or 2026-01-31T14:05", param, ctx)


def parse_duration(text: str) -> float:
    """Return a duration in seconds. Raise ValueError if it is malformed."""
    if (match := _DURATION.fullmatch(text)) is None:
        raise ValueError(f"{text!r} is not a duration")
    return float(match[1]) * _UNITS[match[2]]


def parse_moment(text: str, now: float) -> float:
    """Convert ``text`` (see Moment) to a Unix time, relative to the Unix time ``now``.

    Raise ValueError or OverflowError if it is malformed.
    """
    if text == "now":
        return now
    if text.startswith("-"):
        return now - parse_duration(text[1:])
    if match := _CLOCK.fullmatch(text):
        hour, minute, second, fraction = (part or "0" for part in match.groups())
        moment = (
            datetime.fromtimestamp(now)
            .astimezone()
            .replace(
                hour=int(hour),
                minute=int(minute),
                second=int(second),
                microsecond=int(fraction.ljust(6, "0")),
            )
        )
        return (moment if moment.timestamp() <= now else moment - timedelta(days=1)).timestamp()
    return datetime.fromisoformat(text).timestamp()


def _shown(seconds: float) -> str:
    """Format a duration in the largest unit in which it is whole, or in seconds: ``5m``, ``0.1s``."""
    unit = next((unit for unit in ("d", "h", "m") if seconds and seconds % _UNITS[unit] == 0), "s")
    return f"{seconds / _UNITS[unit]:g}{unit}"


class Option(click.Option):
    """An option with deprecated spellings (``formerly``) that still work, but are not in the help text."""

    def __init__(self, *args: Any, formerly: Sequence[str] = (), **options: Any) -> None:
        super().__init__(*args, **options)
        self._formerly = list(formerly)

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Register the option under all its names."""
        super().add_to_parser(parser, ctx)
        if self._formerly:
            parser.add_option(obj=self, opts=self._formerly, dest=self.name, action="store", nargs=self.nargs)


class CommandGroup(click.Group):
    """A group that suggests the nearest command for an unknown one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command and its arguments. If it is unknown, raise UsageError with a suggestion."""
        word = args[0]
        if self.get_command(ctx, word) is None and not word.startswith("-") and not ctx.resilient_parsing:
            there_are = self.list_commands(ctx)
            ctx.fail(f"unknown command {word!r}{did_you_mean(word, there_are)}")
        return super().resolve_command(ctx, args)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``: did you mean 'stacks'?`` if a known word is similar, otherwise an empty string."""
    near = get_close_matches(word, list(known), n=1)
    return f": did you mean {near[0]!r}?" if near else ""


def completes(
    words: Callable[[], Mapping[str, str]],
) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Return a completion function (``shell_complete=``) for the words, each with a description.

    If reading the words fails, none are offered, because completion cannot show errors.
    """

    def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            found = words()
        except (InnoscopeError, OSError):
            return []
        return [
            CompletionItem(sanitize.line(word), help=sanitize.line(about) or None)
            for word, about in found.items()
            if word.startswith(incomplete)
        ]

    return complete


def log_options(function: F) -> F:
    """Add ``--log-level`` and ``--log-format``, and their spellings in Prometheus exporters."""
    for option in (
        click.option(
            "--log-format",
            "--log.format",
            "log_format",
            type=click.Choice(logs.FORMATS),
            help="Log format on standard error.  [default: logfmt]",
        ),
        click.option(
            "--log-level",
            "--log.level",
            "log_level",
            type=click.Choice(logs.LEVELS),
            help="Lowest severity to log.  [default: info]",
        ),
    ):
        function = option(function)
    return function


def seconds_option(least: float, most: float, about: str, *, default: str | None = "10s") -> Callable[[F], F]:
    """Return a decorator that adds ``--seconds`` (or ``--duration``), passed as ``seconds``."""
    return click.option(
        "-s",
        "--seconds",
        "--duration",
        "seconds",
        type=Duration(least, most),
        default=default,
        show_default=default is not None,
        help=about,
    )
