"""Push profiles from a command: ``innoscope agent --push-once``, and ``innoscope profile --push``."""

from __future__ import annotations

import socket
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec

from innoscope.common.errors import BadFile, NoTarget
from innoscope.daemon.agent.config import Sql
from innoscope.daemon.agent.servers import Servers, same
from innoscope.daemon.protocol.client import SensorClient, SensorDown
from innoscope.daemon.push.client import PushClient
from innoscope.daemon.push.formats import push_request
from innoscope.daemon.push.pusher import queued_profile
from innoscope.daemon.push.queue import QueuedProfile
from innoscope.sampling.render.pprof import encode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from innoscope.daemon.agent.config import Config
    from innoscope.daemon.protocol.client import Cursor, ServerProfiles
    from innoscope.daemon.push.settings import Push
    from innoscope.sampling.fold import StackReport
    from innoscope.target.model import Target

#: Timeout for the sensor's reply in seconds. It may contain ten minutes of one server's profiles.
_SENSOR_TIMEOUT_S: Final = 5.0
#: Label that distinguishes these profiles from a running agent's, which contain the same snapshots.
_LABEL: Final = {"try": "by_hand"}


def push_once(config: Config) -> Iterator[str]:
    """Push a profile of each server. Yield one line of text per server.

    Raise BadFile, SensorDown, NoTarget or PushFailed on failure.
    """
    own_name = _servers(config).own_name
    client, sent = _client(config.push), 0
    for sensor_name, one in _newest(SensorClient(config.sensor.socket, _SENSOR_TIMEOUT_S)).items():
        name = own_name(sensor_name, one.target)
        if name is None or not one.chunks:
            continue
        profile = queued_profile(name, one.target, one.chunks)
        sent += 1
        yield f"{name}: {profile.snapshots} snapshots, {_post(client, config.push, profile, _LABEL)}"
    if not sent:
        raise NoTarget("the sensor has no snapshots yet", remedy="try again in 20 seconds")


class ReportPush:
    """Pushes a report that a command made, with the same labels as the agent's profiles of this server.

    The constructor checks the section ``[push]`` and the files that it names. It raises BadFile.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._client = _client(config.push)
        self._client.check()

    def send(self, report: StackReport) -> str:
        """Push the report, and return a line of text. Raise NoTarget or PushFailed on failure."""
        target = report.target
        name = self._name_of(target)
        if name is None:
            raise NoTarget(
                f"not pushed: pid {target.pid} is not one of the servers that the configuration names",
                remedy="add it as a [[server]], or remove only_named",
            )
        profile = QueuedProfile(
            name, target.flavour, target.version_text, report.started_at, report.ended_at, report.snapshots,
            encode(report),
        )  # fmt: skip
        return f"{name}: pushed {_post(self._client, self._config.push, profile)}"

    def _name_of(self, target: Target) -> str | None:
        """Return the agent's name for the server, which depends on the sensor's if a sensor is running."""
        servers = _servers(self._config)
        try:
            reply = SensorClient(self._config.sensor.socket, _SENSOR_TIMEOUT_S).collect()
        except SensorDown:
            reported = None
        else:
            reported = next((one.name for one in reply.servers if same(one.target, target)), None)
        if reported is not None:
            return servers.own_name(reported, target)
        servers.register([target])
        return next((one.name for one in servers if one.target and same(one.target, target)), None)


def _client(push: Push) -> PushClient:
    if push.url is None:
        raise BadFile("cannot push: push.url is not set", remedy="see [push] in packaging/agent.toml")
    return PushClient(push)


def _servers(config: Config) -> Servers:
    """Return the servers of a configuration, without connections."""
    return Servers(msgspec.structs.replace(config, sql=Sql(enabled=False)))


def _post(
    client: PushClient, push: Push, profile: QueuedProfile, labels: Mapping[str, str] | None = None
) -> str:
    """Send one profile. Return its size, and how long the receiver took."""
    started = time.monotonic()
    client.post(push_request(profile, push, socket.gethostname(), labels))
    return f"{len(profile.pprof):,} bytes, accepted in {time.monotonic() - started:.2f} s"


def _newest(sensor: SensorClient) -> dict[str, ServerProfiles]:
    """Return the newest chunk of each server."""
    newest: dict[str, ServerProfiles] = {}
    cursor: Cursor = {}
    more = True
    while more:
        page = sensor.profiles(cursor)
        cursor, more = page.cursor, page.more
        newest |= {
            name: replace(one, chunks=one.chunks[-1:]) for name, one in page.servers.items() if one.chunks
        }
    return newest
