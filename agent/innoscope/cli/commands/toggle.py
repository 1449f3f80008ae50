"""``innoscope toggle``: change a live server's settings, or explain why a change is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from innoscope.cli import toggle_text as words
from innoscope.cli.common import (
    json_option,
    on_terminal,
    require_yes,
    sql_options,
    table,
    target_options,
    terminal_width,
)
from innoscope.cli.parameters import CommandGroup, Duration, Option, completes, did_you_mean
from innoscope.cli.toggle_text import Here
from innoscope.common import console
from innoscope.target import process_users
from innoscope.target.credentials import LoginOptions
from innoscope.target.discover import find_one
from innoscope.target.proc import ProcFs
from innoscope.target.symbols import packs
from innoscope.toggles import catalog, engine
from innoscope.toggles.model import ChangeRefused, NotOnThisServer, Risk

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from innoscope.target.model import Target
    from innoscope.toggles.model import ChangePlan, Toggle

F = TypeVar("F", bound="Callable[..., Any]")


def _names() -> Mapping[str, str]:
    """Return the names of all toggles with their titles, for shell completion."""
    return {name: toggle.title for name, toggle in catalog.load().items()}


def server_options(function: F) -> F:
    """Add the options that choose a server and an SQL account, and ``--json``."""
    return target_options(sql_options(json_option(function)))


def backend_option(function: F) -> F:
    """Add ``--backend``. None means that all backends are tried, in the catalog's order."""
    return click.option(
        "--backend",
        cls=Option,
        formerly=["--way"],
        type=click.Choice(["sql", "memory"]),
        help="Use this backend.  [default: the first that works]",
    )(function)


@click.group("toggle", cls=CommandGroup)
def command() -> None:
    """Change settings of a live server. Each change is planned, checked, recorded in a journal and verified.

    \b
    Examples:
      innoscope toggle list                       list the toggles on this server with their values
      innoscope toggle plan read_ahead off        show the change without making it
      innoscope toggle set read_ahead off         show the change, ask, make it, and print the undo command
      innoscope toggle undo                       undo the last change
      innoscope toggle set io_capacity 2000 --for 10m --why "import, ticket 4711"
      innoscope toggle history                    show who changed what, when, and whether it was undone

    \b
    Exit codes: 14 refused (nothing was written), 15 not supported on this server, 16 the change failed (see
    `toggle history`), 8 SQL failed, 6 no privileges. All codes: docs/cli.md. More: docs/toggles.md.
    """


@command.command("list", short_help="List the toggles on this server, with values, backends and risk.")
@server_options
def list_toggles(
    pid: int | None, socket: str | None, port: int | None, defaults_file: str | None, user: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """List the toggles on this server: current value, allowed values, backends and risk.

    If the server does not support a toggle, the reason is shown instead.

    \b
    Examples:
      sudo innoscope toggle list
      sudo innoscope toggle list --pid 4242 --json
    """
    target = find_one(pid, socket, port)
    toggles = catalog.load().values()
    now = engine.values(target, toggles, _account(defaults_file, user))
    found = [_here(target, toggle, now) for toggle in toggles]
    if as_json:
        console.document([here.document() for here in found], indent=2)
        return
    console.line(words.title(target))
    console.lines(table(words.LIST, [here.row() for here in found], width=terminal_width()))
    if refused := packs.problem(target):
        console.line(f"note: {refused}")


@command.command("show", short_help="Show a toggle's effect, current value and backends.")
@click.argument("name", shell_complete=completes(_names))
@server_options
def show(
    name: str, pid: int | None, socket: str | None, port: int | None, defaults_file: str | None,
    user: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Show a toggle's effect and when to use it, and its current value and backends on this server.

    Backends that must not be used on this server are listed with a reason.

    \b
    Examples:
      sudo innoscope toggle show read_ahead
    """
    toggle = _toggle(catalog.load(), name)
    target = find_one(pid, socket, port)
    here = _here(target, toggle, engine.values(target, [toggle], _account(defaults_file, user)))
    if as_json:
        console.document(here.document(), indent=2)
        return
    console.lines(words.show_lines(here, target))


@command.command("plan", short_help="Show what `set` would change, without changing it.")
@click.argument("name", shell_complete=completes(_names))
@click.argument("value", default="")
@backend_option
@server_options
def plan(
    name: str, value: str, backend: str | None, pid: int | None, socket: str | None, port: int | None,
    defaults_file: str | None, user: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Show what `set` would change, without changing it.

    The plan lists the old and new value of each setting (for the memory backend, also its address), side
    effects, and the results of the checks.

    \b
    Examples:
      sudo innoscope toggle plan read_ahead off
      sudo innoscope toggle plan max_connections 2000 --backend memory

    \b
    Exit codes: 14 refused, 15 not supported on this server. All codes: docs/cli.md.
    """
    target = find_one(pid, socket, port)
    planned = _planned(target, name, value, backend, _account(defaults_file, user))
    if as_json:
        console.document(words.plan_document(target, planned), indent=2)
    else:
        _show(words.plan_lines(target, planned))
    if planned.refusals:
        raise words.refusal(planned)


@command.command("set", short_help="Change a setting: plan, check, ask, write, verify.")
@click.argument("name", shell_complete=completes(_names))
@click.argument("value", default="")
@click.option(
    "--for",
    "seconds",
    type=Duration(1),
    help="Undo the change automatically after this time: 90s, 10m, 2h, 1d.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask. Dangerous toggles need --confirm instead.")
@click.option("--confirm", metavar="NAME", help="Confirm a dangerous toggle with its name.")
@click.option("--why", metavar="TEXT", help="Reason for the change, for the journal.")
@backend_option
@server_options
def set_toggle(
    name: str, value: str, seconds: float | None, yes: bool, confirm: str | None, why: str | None,
    backend: str | None, pid: int | None, socket: str | None, port: int | None, defaults_file: str | None,
    user: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Show the plan, ask for confirmation, and make the change.

    The change is recorded in the journal before it is made, and verified afterwards. The output includes the
    command that undoes the change.

    \b
    For harmless and careful toggles, confirm with y, or use --yes. For dangerous toggles, type the toggle's
    name, or use --confirm NAME. Without a terminal and without these options, nothing is changed.

    \b
    Examples:
      sudo innoscope toggle set read_ahead off
      sudo innoscope toggle set io_capacity 2000 --for 10m --why "import, ticket 4711"
    """
    if confirm is not None and confirm != name:
        raise click.UsageError(f"--confirm must be the toggle's name, {name}, not {confirm}")
    target = find_one(pid, socket, port)
    account = _account(defaults_file, user)
    planned = _planned(target, name, value, backend, account)
    _show(words.plan_lines(target, planned), err=as_json)
    if planned.refusals:
        raise words.refusal(planned)
    _confirm(planned, yes=yes, confirmed=confirm is not None)
    who = process_users.current_user(ProcFs())
    entry = engine.apply(target, planned, who=who, why=why, seconds=seconds, account=account)
    if as_json:
        console.document(words.entry_document(entry), indent=2)
    else:
        _show(words.done_lines(entry))


@command.command("undo", short_help="Undo a change.")
@click.argument("which", metavar="[ID|NAME]", required=False, shell_complete=completes(_names))
@click.option("--why", metavar="TEXT", help="Reason for the undo, for the journal.")
@server_options
def undo(
    which: str | None, why: str | None, pid: int | None, socket: str | None, port: int | None,
    defaults_file: str | None, user: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Undo the last change, the change with this id, or the last change of this toggle.

    The journal records which server was changed, so --pid is not required. Undo is refused if that server
    process has exited, or if the setting has been changed again since.

    \b
    Examples:
      sudo innoscope toggle undo                  undo the last change
      sudo innoscope toggle undo read_ahead       undo the last change of this toggle
    """
    target = _named(pid, socket, port)
    who = process_users.current_user(ProcFs())
    entry = engine.undo(target, which, account=_account(defaults_file, user), who=who, why=why)
    if as_json:
        console.document(words.entry_document(entry), indent=2)
    else:
        _show(words.undone_lines(entry))


@command.command("history", short_help="Show all changes: who made them, when and why.")
@target_options
@json_option
def history(pid: int | None, socket: str | None, port: int | None, as_json: bool) -> None:
    """Show all changes, newest first: who made each change, when, why, and its result.

    Without --pid, --socket or --port, the changes of all servers are shown.

    \b
    Examples:
      sudo innoscope toggle history
      sudo innoscope toggle history --pid 4242 --json
    """
    entries = list(reversed(engine.history(_named(pid, socket, port))))
    if as_json:
        console.document([words.entry_document(entry) for entry in entries], indent=2)
        return
    if not entries:
        console.line("no changes are recorded")
        return
    rows = [words.history_row(entry) for entry in entries]
    console.lines(table(words.HISTORY, rows, width=terminal_width()))


def _confirm(plan: ChangePlan, *, yes: bool, confirmed: bool) -> None:
    """Ask the user to confirm the plan unless an option confirms it. Raise ChangeRefused if unconfirmed."""
    name = plan.toggle.name
    dangerous = plan.toggle.risk is Risk.DANGEROUS
    if confirmed or (yes and not dangerous):
        return
    call = f"innoscope toggle set {name} {plan.value}"
    if not dangerous:
        require_yes(f"Set {name} to {plan.value}?", call)
        return
    if yes or not on_terminal():
        what = "--yes is not enough" if yes else "cannot ask for confirmation without a terminal"
        raise ChangeRefused(
            f"{name} is dangerous, {what}: nothing was changed", remedy=f"{call} --confirm {name}"
        )
    if console.ask_text(f"This is dangerous. Type {name} to confirm") != name:
        raise ChangeRefused("not confirmed: nothing was changed", remedy=call)


def _here(target: Target, toggle: Toggle, now: Mapping[str, str]) -> Here:
    """Return the toggle's state on this server. ``now`` maps toggle names to the values that were read."""
    try:
        generation = catalog.generation(toggle, target.flavour, target.version)
    except NotOnThisServer as error:
        return Here(toggle, why_not=error.what)
    return Here(toggle, now.get(toggle.name), catalog.allowed(generation.backends[0], toggle), generation)


def _planned(target: Target, name: str, value: str, backend: str | None, account: LoginOptions) -> ChangePlan:
    return engine.plan(target, name, value, account=account, backends=None if backend is None else [backend])


def _toggle(toggles: dict[str, Toggle], name: str) -> Toggle:
    if name not in toggles:
        near = did_you_mean(name, toggles) or f"; there are {', '.join(toggles)}"
        raise click.BadParameter(f"unknown toggle {name!r}{near}", param_hint="NAME")
    return toggles[name]


def _named(pid: int | None, socket: str | None, port: int | None) -> Target | None:
    """Return the server that the options select, or None (for all servers) if no option is given."""
    return find_one(pid, socket, port) if (pid, socket, port) != (None, None, None) else None


def _account(defaults_file: str | None, user: str | None) -> LoginOptions:
    return LoginOptions(defaults_file, user)


def _show(lines: Any, *, err: bool = False) -> None:
    console.lines(lines, err=err)
