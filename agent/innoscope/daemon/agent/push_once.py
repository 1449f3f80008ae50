"""``innoscope agent --push-once``: a profile of each server sent by hand, to see if it gets through."""

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
from innoscope.daemon.push.client import Client
from innoscope.daemon.push.formats import posted
from innoscope.daemon.push.pusher import entry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.daemon.agent.config import Config
    from innoscope.daemon.protocol.client import ServerProfiles

#: Seconds for the sensor, which may have an hour to tell.
_PATIENT: Final = 5.0
#: What tells these profiles from those that the agent pushes, which have the same looks in them.
_LABEL: Final = {"try": "by_hand"}


def push_once(config: Config) -> Iterator[str]:
    """Lines for people, one a server. Raises BadFile, SensorDown, NoTarget, PushFailed."""
    push = config.push
    if push.url is None:
        raise BadFile("push.url is not set: nothing is pushed", remedy="packaging/agent.toml explains [push]")
    called = Servers(msgspec.structs.replace(config, sql=Sql(enabled=False))).called
    client, sent = Client(push), 0
    for its_name, one in _newest(SensorClient(config.sensor.socket, _PATIENT)).items():
        name = called(its_name, one.target)
        if name is None or not one.chunks:
            continue
        made = entry(name, one.target, one.chunks)
        began = time.monotonic()
        client.post(posted(made, push, socket.gethostname(), _LABEL))
        took = time.monotonic() - began
        sent += 1
        yield f"{name}: {made.looks} looks, {len(made.pprof):,} bytes, taken in {took:.2f} s"
    if not sent:
        raise NoTarget("the sensor has no looks yet", remedy="try again in 20 seconds; innoscope targets")


def _newest(sensor: SensorClient) -> dict[str, ServerProfiles]:
    """The last chunk of each server."""
    found: dict[str, ServerProfiles] = {}
    cursor, told = sensor.profiles({})
    while any(one.chunks for one in told.values()):
        found |= {name: replace(one, chunks=one.chunks[-1:]) for name, one in told.items() if one.chunks}
        cursor, told = sensor.profiles(cursor)
    return found
