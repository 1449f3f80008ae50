"""Test that a server that the sensor fails to watch does not keep it from watching the others."""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from innoscope.daemon.sensor import main
from innoscope.daemon.sensor.main import Sensor, SensorSettings
from innoscope.daemon.sensor.watch import WatchedServer
from safety.injecting import ERRORS
from servers import Server
from waiting import until

if TYPE_CHECKING:
    from innoscope.target.model import Target


@pytest.mark.parametrize("error", ERRORS)
def test_the_other_servers_are_watched(
    error: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    def watch(target: Target, *arguments: Any, **named: Any) -> WatchedServer:
        if target.pid == bad.pid:
            ERRORS[error]()
        return WatchedServer(target, *arguments, **named)

    with ExitStack() as stack:
        bad = stack.enter_context(Server("mysql-5.6.24"))
        good = stack.enter_context(Server("mysql-5.6.24"))
        monkeypatch.setattr(main, "WatchedServer", watch)
        sensor = Sensor(SensorSettings(only=frozenset({str(bad.pid), str(good.pid)})))
        ended = threading.Event()
        running = threading.Thread(target=partial(sensor.run, ended))
        running.start()
        stack.callback(sensor.close)
        stack.callback(running.join)
        stack.callback(ended.set)

        def watched() -> set[int]:
            return {one["target"]["pid"] for one in sensor.collect()["servers"]}

        until(lambda: watched() == {good.pid}, lambda: caplog.text)
        until(lambda: "cannot watch a server" in caplog.text)
        assert watched() == {good.pid}
