"""Reproduce and diagnose incidents."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from incidents.cures import Cure, Effect, measured
from install.test_account import PASSWORD, statements
from servers import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from servers.launch import Options

    Scene = Callable[[Server], AbstractContextManager[object]]

SECONDS = 6
_ENDS = (0, 18)  # exit codes without and with findings
_PATIENCE_S = 150.0  # seconds after which a command is considered hung
ROOT: Final = ("-u", "root")


#: Statements to run before the account is created on another member of a cluster. They turn off replication
#: for the session, because the first member already has the account. A secondary of a replication group must
#: also be made writable. It stays writable, because making it read-only again would wait for LOCK TABLES.
_LOCALLY: Final = {
    "mariadb-10.11-galera": ("SET SESSION wsrep_on = OFF",),
    "mysql-9.7": ("SET SESSION sql_log_bin = OFF", "SET GLOBAL super_read_only = OFF"),
}


@dataclass(frozen=True, slots=True)
class Incident:
    """A stall: ``stall`` causes it on the server, and ``twin`` is the same load without the cause.

    ``finding`` must be the first finding of the stall, and must not be reported for the twin. ``also`` lists
    further findings that must be reported for the stall, and must not be reported for the twin. If
    ``consequences`` is given, only these findings may be reported in addition.

    ``what`` describes the cause in one sentence. ``setup`` runs before the stall and before the twin, for
    example to create data. A scene may yield another server or a pid to diagnose; by default, the scene's own
    server is diagnosed, which the scene may have restarted. If a setting is the cause, ``twin_options``
    replace ``options`` for the twin. ``arguments`` are passed to ``innoscope diagnose``.
    """

    name: str
    server: str
    finding: str
    stall: Scene
    twin: Scene
    options: Options = ()
    twin_options: Options | None = None
    what: str = ""
    setup: Callable[[Server], object] | None = None
    seconds: float = SECONDS
    arguments: tuple[str, ...] = ()
    consequences: tuple[str, ...] | None = None
    also: tuple[str, ...] = ()
    cure: Cure | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """The output of ``innoscope diagnose --json``, and the seconds until the command printed it."""

    record: dict[str, Any]
    seconds: float = 0.0

    @property
    def names(self) -> list[str]:
        """Return the findings, worst first."""
        return [finding["name"] for finding in self.record["findings"]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of the stall and of its twin, and the effect of the cure."""

    stall: Result
    twin: Result
    effect: Effect | None = None


def diagnose(pid: int, *more: str, seconds: float = SECONDS, login: tuple[str, ...] = ROOT) -> Result:
    """Run ``innoscope diagnose`` on one server, as a user would."""
    command = [*command_for(pid, seconds, login), "--json", *more]
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        with _killed_after(_PATIENCE_S, process):
            answer = process.stdout.readline()
            took = time.monotonic() - began
            _, complaints = process.communicate()
    assert process.returncode in _ENDS, complaints
    return Result(json.loads(answer), took)


@contextlib.contextmanager
def _killed_after(seconds: float, process: subprocess.Popen[str]) -> Iterator[None]:
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def command_for(pid: int, seconds: float, login: tuple[str, ...] = ROOT) -> list[str]:
    """Return the ``innoscope diagnose`` command for a process."""
    innoscope = str(Path(sys.executable).with_name("innoscope"))
    return [innoscope, "diagnose", "--pid", str(pid), *login, "--seconds", str(seconds)]


@contextlib.contextmanager
def _login(*, account: bool) -> Iterator[tuple[str, ...]]:
    """Yield the command-line options for root, or for the account of packaging/account.sql."""
    if not account:
        yield ROOT
        return
    with tempfile.TemporaryDirectory(prefix="innoscope-") as folder:
        file = Path(folder) / "my.cnf"
        file.write_text(f'[client]\nuser = innoscope\npassword = "{PASSWORD}"\n')
        file.chmod(0o600)
        yield "--defaults-file", str(file)


@contextlib.contextmanager
def staged(incident: Incident, *, twin: bool = False, account: bool = False) -> Iterator[tuple[Server, int]]:
    """Run the stall or its twin on a new server; yield the server and the pid to diagnose.

    The toggle journal is in a temporary directory. With ``account``, the diagnosed server has the
    account of packaging/account.sql.
    """
    options = incident.options
    if twin and incident.twin_options is not None:
        options = incident.twin_options
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="innoscope-"))
        places = {"INNOSCOPE_STATE": folder, "INNOSCOPE_RUN": folder}
        stack.enter_context(mock.patch.dict(os.environ, places))
        server = stack.enter_context(Server(incident.server, options=options))
        if incident.setup is not None:
            incident.setup(server)
        if account:
            server.sql(*statements(PASSWORD))
        scene = incident.twin if twin else incident.stall
        diagnosed = stack.enter_context(scene(server))
        if account and isinstance(diagnosed, Server) and diagnosed is not server:
            diagnosed.sql(*_LOCALLY.get(diagnosed.name, ()), *statements(PASSWORD))
        yield server, _pid_to_diagnose(diagnosed, server)


def _pid_to_diagnose(yielded: object, server: Server) -> int:
    if isinstance(yielded, int):
        return yielded
    return yielded.pid if isinstance(yielded, Server) else server.pid


def run(incident: Incident, *, account: bool = False) -> Outcome:
    """Diagnose the stall and apply its cure, then diagnose the twin on another server of the same kind.

    With ``account``, use the account of packaging/account.sql instead of root.
    """
    with _login(account=account) as login:
        with staged(incident, account=account) as (server, pid):
            stall = diagnose(pid, *incident.arguments, seconds=incident.seconds, login=login)
            effect = measured(incident.cure, server, pid) if incident.cure else None
        with staged(incident, twin=True, account=account) as (_, pid):
            twin = diagnose(pid, *incident.arguments, seconds=incident.seconds, login=login)
    return Outcome(stall, twin, effect)
