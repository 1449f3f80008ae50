"""Implement the ``innoscope`` command: run a subcommand, and convert all errors to exit codes."""

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
from innoscope.cli.parameters import CommandGroup
from innoscope.common import console, logs
from innoscope.common.errors import ExitCode, InnoscopeError

if TYPE_CHECKING:
    from collections.abc import Sequence

_DISK_TROUBLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})

_COMPLETION = "_INNOSCOPE_COMPLETE"  # set by the shell completion scripts that click generates

#: Commands and their descriptions in ``--help``, most used first. Their modules are imported on demand,
#: because startup must be fast.
COMMANDS = {
    "diagnose": "Report what is wrong with a server, why, and what to do.",
    "stacks": "Show the stacks of all threads, and what they wait for.",
    "top": "Show the stacks live, once a second; --record saves them.",
    "watch": "Wait for a stall, and write it to an incident file.",
    "profile": "Profile CPU time, or with --off-cpu waiting time.",
    "latency": "Explain why the p99 of statements is slow, by wait class.",
    "trace": "Trace one function: call rate, latency, callers, arguments.",
    "history": "Show what busy threads did over the past hours, from files.",
    "incidents": "List, fetch and show the incident files of many agents.",
    "diff": "Compare two dumps, recordings or incident files.",
    "replay": "Play back a recording of `top --record`.",
    "targets": "List the MySQL and MariaDB servers on this host.",
    "doctor": "Check which features work on this host, with remedies.",
    "toggle": "Change a setting of a live server, with checks and undo.",
    "unstick": "Resume a server that a debugger or signal left stopped.",
    "probes": "List the eBPF probes, their state, counts and cost.",
    "symbols": "Make and list symbol packs, for hosts without debug files.",
    "agent": "Serve metrics to Prometheus, without privileges.",
    "sensor": "Run the agent's privileged half, on a Unix socket only.",
    "self-profile": "Profile Innoscope's own processes with py-spy.",
}

_EPILOG = """\b
Examples:
  sudo innoscope diagnose                 what is wrong with the only server on this host
  sudo innoscope stacks                   its busy threads, most frequent stack first
  sudo innoscope stacks -S /run/mysqld/mysqld.sock --by wait --queries
  sudo innoscope top                      its busy threads, live
  innoscope targets                       the servers on this host
  sudo innoscope doctor                   why names or stacks are missing, and the remedy

\b
Times are given as 10 (seconds), 90s, 5m or 1h. Output has colors only on a terminal without NO_COLOR.
Exit codes: docs/cli.md.
"""


@dataclass
class GlobalOptions:
    """The options of ``innoscope`` itself."""

    debug: bool = False


class LazyGroup(CommandGroup):
    """A group that imports the module of a command only when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, most used first."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module and return its ``command``; None if the name is unknown."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        try:
            command = importlib.import_module(f"innoscope.cli.commands.{cmd_name.replace('-', '')}").command
        except ImportError as error:
            if "_native" not in str(error):
                raise
            raise InnoscopeError(f"cannot load the Rust core: {error}", remedy="make setup") from error
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands for ``--help`` without importing their modules."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=LazyGroup,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="innoscope")
@click.option("--debug", is_flag=True, help="Also print the traceback of an error.")
@click.pass_obj
def cli(settings: GlobalOptions, debug: bool) -> None:
    """See inside a live MySQL or MariaDB server without stopping it."""
    from innoscope import _native  # imported after get_command has checked that the core is built

    settings.debug = debug
    logs.set_up_for_command(debug=debug)
    _native.print_only_location_of_panics()


def run(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit with its exit code. This is the entry point of the console script."""
    logs.log_uncaught()
    # A suspended command could not detach its probes, so Ctrl-Z acts like Ctrl-C.
    signal.signal(signal.SIGTSTP, lambda *_: signal.raise_signal(signal.SIGINT))
    code = main(arguments)
    try:
        console.flush()
    except (OSError, ValueError):  # the reader has closed the pipe
        _drop_output()
    sys.exit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code (docs/cli.md). Print errors instead of raising them."""
    settings = GlobalOptions()
    try:
        code = _invoke(arguments, settings)
        console.flush()
    except click.ClickException as error:
        _show_usage(error)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return ExitCode.BROKEN_PIPE
    except InnoscopeError as error:
        _complain(error.what, error.remedy, settings)
        return error.exit_code
    except Exception as error:  # unexpected: show a message instead of a traceback
        if isinstance(error, OSError) and error.errno in _DISK_TROUBLE:
            _complain(f"cannot write the output: {error.strerror}", "choose another file or device", settings)
            _drop_output()
            return ExitCode.CANNOT_WRITE
        remedy = None if settings.debug else "run with --debug for the traceback: innoscope --debug …"
        _complain(f"unexpected {type(error).__name__}: {error}", remedy, settings)
        return ExitCode.FAILURE
    return code


def _invoke(arguments: Sequence[str] | None, settings: GlobalOptions) -> int:
    """Run the command and return its exit code. Unlike ``cli.main``, propagate all errors."""
    if _COMPLETION in os.environ:
        cli.main(prog_name="innoscope")
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with cli.make_context("innoscope", given, obj=settings) as context:
            result = cli.invoke(context)
    except click.exceptions.Exit as error:
        return error.exit_code
    return result if isinstance(result, int) else 0


def _complain(what: str, remedy: str | None, settings: GlobalOptions) -> None:
    """Write ``innoscope: <what>`` to standard error, with the remedy below."""
    console.line(console.Colored(f"innoscope: {what}", console.Color.RED), err=True)
    console.lines((f"  {line}" for line in (remedy or "").split("\n") if line), err=True)
    if settings.debug:
        console.block(traceback.format_exc(), err=True)


def _show_usage(error: click.ClickException) -> None:
    """Print click's message about an invalid command line. Escape it, because it may quote arguments."""
    text = io.StringIO()
    error.show(file=text)
    console.block(text.getvalue(), err=True)


def _drop_output() -> None:
    """Redirect output to /dev/null, so that the flush at exit does not fail if the pipe is closed."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


if __name__ == "__main__":
    run()
