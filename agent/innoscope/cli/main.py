"""The command ``innoscope``: finds the subcommand, and is the only place where errors become exit codes."""

from __future__ import annotations

import errno
import importlib
import io
import os
import signal
import sys
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import click

from innoscope import __version__
from innoscope.common import console, logs
from innoscope.common.errors import CannotWrite, InnoscopeError

if TYPE_CHECKING:
    from collections.abc import Sequence

INTERRUPTED = 130  # 128 + SIGINT, as shells have it
BROKEN_PIPE = 141  # 128 + SIGPIPE
UNEXPECTED = 1
_DISK_TROUBLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})

_COMPLETION = "_INNOSCOPE_COMPLETE"  # set by the completion that click writes for shells

#: Command → its line in ``--help``. Its module is imported when it is used, since start-up must be quick.
COMMANDS = {
    "targets": "List the MySQL and MariaDB servers on this host.",
    "symbols": "Make and list symbol packs: the names of a build, for hosts without its debug files.",
    "doctor": "Check what works on this host and server, and what to do about the rest.",
    "diagnose": "Say what is wrong with a server, why, and what to do: ten seconds of looking.",
    "diff": "Tell what is new in a dump or an incident file since a healthy one.",
    "watch": "Wait for a stall, and write an incident file of it and of the minute before.",
    "stacks": "Show where every thread of a server is, without stopping it.",
    "probes": "Show the eBPF probes: where each can go, and what it costs.",
    "profile": "Show where a server's CPU time goes, or what its threads wait for, over some seconds.",
    "trace": "Watch one function: its rate, how long it takes, who calls it, with what.",
    "top": "Watch a server's waits live, once a second.",
    "replay": "Look again at what `top --record` wrote.",
    "toggle": "Change a live server's settings: planned, checked, journalled, verified, undone.",
    "unstick": "Resume a server that a debugger or signal left stopped.",
    "self-profile": "Show what Innoscope's own processes spend CPU time on, with py-spy.",
    "agent": "Serve metrics to Prometheus: what the sensor sees, and what servers say over SQL.",
    "sensor": "The privileged half of the agent: probes, looks, memory; a Unix socket only.",
}

_EPILOG = """\b
Examples:
  innoscope targets                       which servers run here
  sudo innoscope stacks                   all threads of the only server, most frequent stack first
  sudo innoscope stacks --pid 4242 --by wait --queries
  sudo innoscope doctor                   why names or stacks are missing, and the remedy
"""


@dataclass
class Settings:
    """What holds for every command."""

    debug: bool = False


class LazyGroup(click.Group):
    """A group that imports the module of a command only when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order in which a person meets them."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The ``command`` of module ``innoscope.cli.<name>``, without hyphens; None for an unknown name."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        try:
            command = importlib.import_module(f"innoscope.cli.commands.{cmd_name.replace('-', '')}").command
        except ImportError as error:
            if "_native" not in str(error):
                raise
            raise InnoscopeError(f"the native core cannot be loaded: {error}", remedy="make setup") from error
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in ``--help``, without importing any command."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=LazyGroup,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="innoscope")
@click.option("--debug", is_flag=True, help="On an error, print the traceback too.")
@click.pass_obj
def cli(settings: Settings, debug: bool) -> None:
    """See inside a live MySQL or MariaDB server without stopping it."""
    from innoscope import _native  # here, because get_command has reported a core that is not built

    settings.debug = debug
    logs.set_up_for_command(debug=debug)
    _native.print_only_location_of_panics()


def run(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit with its code: the entry point of the console script."""
    logs.log_uncaught()
    # A suspended command could not detach its probes: Ctrl-Z ends it as Ctrl-C does.
    signal.signal(signal.SIGTSTP, lambda *_: signal.raise_signal(signal.SIGINT))
    code = main(arguments)
    try:
        console.flush()
    except (OSError, ValueError):  # closed by whoever read it
        _drop_output()
    sys.exit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code (docs/cli.md lists them) and never raises."""
    settings = Settings()
    try:
        code = _invoke(arguments, settings)
        console.flush()
    except click.ClickException as error:
        _show_usage(error)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return BROKEN_PIPE
    except InnoscopeError as error:
        _complain(error.what, error.remedy, settings)
        return error.exit_code
    except Exception as error:  # the last line of defence: no traceback at 3 a.m.
        if isinstance(error, OSError) and error.errno in _DISK_TROUBLE:
            _complain(f"cannot write the output: {error.strerror}", "write it elsewhere", settings)
            _drop_output()
            return CannotWrite.exit_code
        remedy = None if settings.debug else "run with --debug for the traceback: innoscope --debug …"
        _complain(f"unexpected {type(error).__name__}: {error}", remedy, settings)
        return UNEXPECTED
    return code


def _invoke(arguments: Sequence[str] | None, settings: Settings) -> int:
    """The command's exit code; what it raises comes through as it is, which ``cli.main`` would not let it."""
    if _COMPLETION in os.environ:
        cli.main(prog_name="innoscope")
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with cli.make_context("innoscope", given, obj=settings) as context:
            result = cli.invoke(context)
    except click.exceptions.Exit as error:
        return error.exit_code
    return result if isinstance(result, int) else 0


def _complain(what: str, remedy: str | None, settings: Settings) -> None:
    """``innoscope: <what>`` and the remedy below it, on stderr."""
    console.line(f"innoscope: {what}", err=True)
    console.lines((f"  {line}" for line in (remedy or "").split("\n") if line), err=True)
    if settings.debug:
        console.block(traceback.format_exc(), err=True)


def _show_usage(error: click.ClickException) -> None:
    """Print what click says of a wrong command line; it repeats arguments."""
    text = io.StringIO()
    error.show(file=text)
    console.block(text.getvalue(), err=True)


def _drop_output() -> None:
    """Let the interpreter flush into nothing at exit instead of complaining about the closed pipe."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


if __name__ == "__main__":
    run()
