"""``innoscope sensor``: run the privileged process that the agent queries."""

from __future__ import annotations

import logging
import os
import signal
import threading
from typing import TYPE_CHECKING

import click

from innoscope import _native
from innoscope.cli.open_server import STOPPING_NOTHING
from innoscope.cli.parameters import Duration, Option, completes, log_options
from innoscope.common import logs
from innoscope.common.errors import ExitCode
from innoscope.common.supervision import GaveUp, Supervisor
from innoscope.daemon.protocol.client import DEFAULT_SOCKET
from innoscope.daemon.sensor.main import Sensor, SensorSettings
from innoscope.daemon.sensor.server import SocketServer
from innoscope.daemon.sensor.watch import ProbeSettings
from innoscope.metrics.collectors.memory import MemoryCollector
from innoscope.probes.catalog import default_catalog
from innoscope.target import allowed_users

if TYPE_CHECKING:
    from collections.abc import Mapping

_EPILOG = """\b
Examples:
  sudo innoscope sensor                                  for root only, at /run/innoscope/sensor.sock
  sudo innoscope sensor --group innoscope                members of that group may connect too
  sudo innoscope sensor --server shop=/run/mysqld/mysqld.sock --server audit=4242
  sudo innoscope sensor --only /run/mysqld/mysqld.sock   no other server on this host
  innoscope sensor --sensor-socket /tmp/i/sensor.sock    your own servers, if permitted

\b
The sensor needs root, or CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE, CAP_CHECKPOINT_RESTORE and
CAP_DAC_READ_SEARCH, which are all that the unit in packaging/systemd grants. On kernels without uprobe
links, probes also need CAP_SYS_ADMIN. The sensor opens no port, uses no SQL and writes to no server.
SIGTERM ends it. If the sensor is killed, only its socket file remains, which the next sensor replaces.
Exit codes: docs/cli.md.
"""


def _names(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Parse ``NAME=PID`` and ``NAME=SOCKET`` into ``{pid or socket: name}``.

    Raise BadParameter if a value is malformed or a duplicate.
    """
    found: dict[str, str] = {}
    for value in values:
        name, equals, where = value.partition("=")
        if not (name and equals and _is_place(where)):
            raise click.BadParameter(f"{value!r} is not NAME=PID or NAME=/path/of/its.sock")
        if name in found.values() or where in found:
            raise click.BadParameter(f"{value!r}: duplicate name or server")
        found[where] = name
    return found


def _places(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> frozenset[str]:
    for value in values:
        if not _is_place(value):
            raise click.BadParameter(f"{value!r} is not a pid or /path/of/its.sock")
    return frozenset(values)


def _families() -> Mapping[str, str]:
    return dict.fromkeys(default_catalog().families, "")


def _is_place(text: str) -> bool:
    return text.isdecimal() or text.startswith("/")


@click.command("sensor", epilog=_EPILOG)
@click.option(
    "--sensor-socket",
    "path",
    cls=Option,
    formerly=["--socket"],
    type=click.Path(),
    default=DEFAULT_SOCKET,
    show_default=True,
    metavar="PATH",
    help="Path of the socket to listen on.",
)
@click.option("--group", metavar="GROUP", help="Let members of this group connect, in addition to root.")
@click.option(
    "--server",
    "names",
    multiple=True,
    callback=_names,
    metavar="NAME=WHERE",
    help="Give the name NAME to the server with this pid or socket (may be repeated).",
)
@click.option(
    "--only",
    multiple=True,
    callback=_places,
    metavar="WHERE",
    help="Watch only the server with this pid, or the one that listens on this socket (may be repeated).",
)
@click.option(
    "-i",
    "--interval",
    type=Duration(0.1),
    default="1s",
    show_default=True,
    help="Time between snapshots of all threads.",
)
@click.option(
    "-m",
    "--method",
    type=click.Choice(["auto", *STOPPING_NOTHING]),
    default="auto",
    show_default=True,
    help="How to copy stacks. auto: the first of the other methods that works.",
)
@click.option(
    "--probes/--no-probes", default=True, show_default=True, help="Attach eBPF probes to the servers."
)
@click.option(
    "--family",
    "families",
    multiple=True,
    metavar="NAME",
    shell_complete=completes(_families),
    help="Attach only this family of probes (may be repeated); see `innoscope probes list`.",
)
@click.option(
    "--budget",
    type=click.FloatRange(0, 1),
    default=0.01,
    show_default=True,
    help="Maximum cost of a server's probes, as a share of the CPUs that the server may use.",
)
@log_options
def command(
    path: str,
    group: str | None,
    names: dict[str, str],
    only: frozenset[str],
    interval: float,
    method: str,
    probes: bool,
    families: tuple[str, ...],
    budget: float,
    log_format: str | None,
    log_level: str | None,
) -> int:
    """Run the privileged half of the agent, which observes all servers on this host.

    The agent reaches the sensor over a Unix socket. The sensor detects servers that start or restart. It
    never stops a server, never uses ptrace, and never changes a setting.
    """
    _native.limit_retained_memory()
    logs.set_up(log_format or "logfmt", log_level or "info")
    log = logging.getLogger("innoscope.daemon.sensor")
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    wanted = ProbeSettings(frozenset(families) or None, budget) if probes else None
    rule = allowed_users.load()
    supervisor = Supervisor()
    settings = SensorSettings(interval, names, wanted, only, rule, method)
    sensor = Sensor(settings, [MemoryCollector], supervisor=supervisor)
    socket = SocketServer(path, sensor.handle, supervisor, group=group)
    log.info("sensor listens", extra={"socket": path, "pid": os.getpid()})
    code = ExitCode.SUCCESS
    try:
        sensor.run(ended)
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    except GaveUp as error:
        log.critical("sensor gives up", extra={"reason": error.what})
        code = error.exit_code
    finally:
        ended.set()
        socket.close()
        sensor.close()
    log.info("sensor exits")
    return code
