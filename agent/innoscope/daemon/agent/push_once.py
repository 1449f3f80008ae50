"""``innoscope agent --push-once``: push one profile of each server, to test the configuration."""

from __future__ import annotations

import socket
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import msgspec

from innoscope.common.errors import BadFile, NoTarget
from innoscope.daemon.agent.config import Sql
from innoscope.daemon.agent.servers import Servers
from innoscope.daemon.protocol.client import SensorClient
from innoscope.daemon.push.client import PushClient
from innoscope.daemon.push.formats import push_request
from innoscope.daemon.push.pusher import queued_profile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.daemon.agent.config import Config
    from innoscope.daemon.protocol.client import Cursor, ServerProfiles

#: Timeout for the sensor's reply in seconds. It may contain ten minutes of one server's profiles.
_SENSOR_TIMEOUT_S: Final = 5.0
#: Label that distinguishes these profiles from a running agent's, which contain the same snapshots.
_LABEL: Final = {"try": "by_hand"}


def push_once(config: Config) -> Iterator[str]:
    """Push a profile of each server. Yield one line of text per server.

    Raise BadFile, SensorDown, NoTarget or PushFailed on failure.
    """
    push = config.push
    if push.url is None:
        raise BadFile("cannot push: push.url is not set", remedy="see [push] in packaging/agent.toml")
    own_name = Servers(msgspec.structs.replace(config, sql=Sql(enabled=False))).own_name
    client, sent = PushClient(push), 0
    for sensor_name, one in _newest(SensorClient(config.sensor.socket, _SENSOR_TIMEOUT_S)).items():
        name = own_name(sensor_name, one.target)
        if name is None or not one.chunks:
            continue
        profile = queued_profile(name, one.target, one.chunks)
        started = time.monotonic()
        client.post(push_request(profile, push, socket.gethostname(), _LABEL))
        seconds = time.monotonic() - started
        sent += 1
        size = f"{profile.snapshots} snapshots, {len(profile.pprof):,} bytes"
        yield f"{name}: {size}, accepted in {seconds:.2f} s"
    if not sent:
        raise NoTarget("the sensor has no snapshots yet", remedy="try again in 20 seconds")


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
