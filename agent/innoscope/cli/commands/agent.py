"""``innoscope agent``: serve metrics for Prometheus, and the last hour of stacks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from innoscope.cli.parameters import Option, log_options
from innoscope.common import console, logs
from innoscope.daemon.agent import config as configuration
from innoscope.daemon.agent import push_once as agent_push_once
from innoscope.daemon.agent.main import run
from innoscope.daemon.http import auth, web_config
from innoscope.daemon.http import server as http_server
from innoscope.daemon.protocol.client import DEFAULT_SOCKET
from innoscope.daemon.push import client, otlp, uploads
from innoscope.target import credentials

if TYPE_CHECKING:
    from innoscope.daemon.agent.config import Config

_EPILOG = """\b
Examples:
  sudo innoscope agent                        all servers on this host, http://127.0.0.1:9977/metrics
  innoscope agent --config.file /etc/innoscope/agent.toml --check
  innoscope agent --config.file /etc/innoscope/agent.toml --push-once
  innoscope agent --web.listen-address :9977 --web.config.file /etc/innoscope/web.yaml

\b
If you run the agent manually as root, it starts a sensor unless one is running, and then drops all
privileges. There is no password option: accounts are in option files. SIGHUP reloads the web configuration.
Configuration keys: packaging/agent.toml. Exit codes: docs/cli.md.
"""


@click.command("agent", epilog=_EPILOG)
@click.option(
    "--config.file",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Configuration file (TOML).",
)
@click.option("--check", is_flag=True, help="Check the configuration and exit.")
@click.option(
    "--push-once", is_flag=True, help="Push one profile of each server as configured in [push], and exit."
)
@click.option(
    "--web.listen-address",
    "listen",
    metavar="ADDRESS",
    help="Address to listen on.  [default: 127.0.0.1:9977]",
)
@click.option(
    "--web.telemetry-path", "telemetry", metavar="PATH", help="URL path of the metrics.  [default: /metrics]"
)
@click.option(
    "--web.config.file",
    "web_file",
    metavar="FILE",
    help="TLS, users and headers, in the format of Prometheus exporters.",
)
@click.option(
    "--sensor-socket",
    "sensor",
    cls=Option,
    formerly=["--sensor.socket"],
    type=click.Path(),
    metavar="PATH",
    help=f"The sensor's Unix socket.  [default: {DEFAULT_SOCKET}]",
)
@click.option(
    "--defaults-file",
    "--config.my-cnf",
    "defaults_file",
    type=click.Path(),
    metavar="FILE",
    help="Option file with the SQL account.",
)
@log_options
def command(
    config_file: Path | None, check: bool, push_once: bool, listen: str | None, telemetry: str | None,
    web_file: str | None, sensor: str | None, defaults_file: str | None, log_level: str | None,
    log_format: str | None,
) -> None:  # fmt: skip
    """Serve metrics of all servers on this host to Prometheus, without privileges.

    The agent queries the servers over SQL, and receives data that requires privileges from the sensor. The
    agent also stores the stacks from the last hour.
    """
    found = configuration.load(config_file) if config_file else configuration.Config()
    found = configuration.changed(found, {
        "web": {"listen_address": listen, "telemetry_path": telemetry, "config_file": web_file},
        "sensor": {"socket": sensor},
        "sql": {"defaults_file": defaults_file},
        "log": {"level": log_level, "format": log_format},
    })  # fmt: skip
    if check:
        _check(found)
        return
    if push_once:
        console.lines(agent_push_once.push_once(found))
        return
    logs.set_up(found.log.format, found.log.level)

    run(found)


def _check(found: Config) -> None:
    """Check the configuration and the files that it refers to, as far as possible without a server."""
    http_server.ListenAddress.parse(found.web.listen_address)
    if found.web.config_file:
        read = web_config.load(Path(found.web.config_file))
        if read.tls:
            read.tls.context()
        if read.users:
            auth.require_bcrypt()
    for file in {found.sql.defaults_file, *(server.defaults_file for server in found.server)} - {None}:
        credentials.find(file)
        for path in credentials.world_readable_files(file):
            console.line(f"{path} contains a password and is readable by everyone: chmod o= {path}", err=True)
    if found.push.url is not None:
        client.PushClient(found.push).check()
    if found.otlp.url is not None:
        otlp.OtlpSender(found.otlp).check()
    if found.notify.url is not None:
        client.HttpSender(found.notify, "notify", "the notification").check()
    if found.upload.url is not None:
        uploads.sender(found.upload).check()
    console.line("the configuration is valid")
