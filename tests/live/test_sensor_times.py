"""Test how soon the sensor reports a restarted server and a stopped one.

These tests measure times, so they run alone (tests/conftest.py).
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from live.test_sensor import IDLERS, has_process, has_snapshot, threads
from safety.debugging import is_stopped
from safety.sensing import Sensing, of_pid, values
from safety.stopwatch import Stopwatch
from scale import few
from servers import Server
from workloads import Crowd, Idle

if TYPE_CHECKING:
    from innoscope.common.samples import Outcome
    from innoscope.daemon.protocol.messages import ServerReply

#: Maximum seconds from the start of the new process to its first snapshot.
FOLLOWED_S = 5
#: Number of restarts. The quickest one is measured, because a busy host can delay one of them.
RESTARTS = 2


def counters(one: Outcome) -> dict[tuple[str, tuple[str, ...]], float]:
    names = (
        "thread_seconds",
        "thread_samples",
        "mysqld_cpu_seconds",
        "mysqld_read_bytes",
        "mysqld_written_bytes",
    )
    return {
        (sample.metric, sample.labels): float(sample.value)
        for sample in one.samples
        if sample.metric in names and isinstance(sample.value, int | float)
    }


def _all_counters(server: ServerReply) -> dict[tuple[str, str, tuple[str, ...]], float]:
    return {
        (one.collector, *series): value for one in server.outcomes for series, value in counters(one).items()
    }


def _is_complete(reply: ServerReply) -> bool:
    """Return whether all collectors with counters have answered in time."""
    return has_snapshot(reply) and has_process(reply)


@pytest.mark.parametrize(
    "name",
    few(("mysql-5.6.24", "mariadb-10.11"), "mariadb-10.11", reason="one server is killed"),
)
def test_restarted_server_keeps_its_name_and_counters(name: str) -> None:
    """Check that the new process is observed within 5 s, and that no counter decreases."""
    with (
        Server(name) as server,
        Sensing("--interval", 0.2, only=[server]) as sensing,
        Crowd(server, IDLERS, "mysql"),
    ):
        first = sensing.until(server, lambda reply: threads(reply, "idle") >= IDLERS)
        name_before, port = first.name, server.port
        counted = "waits", "thread_seconds", ("idle",)

        def is_counted(reply: ServerReply) -> bool:
            return _is_complete(reply) and _all_counters(reply)[counted] > 0

        took = []
        for _ in range(RESTARTS):
            before = _all_counters(sensing.until(server, is_counted))
            server.kill()
            down = next(one for one in sensing.client.collect().servers if one.name == name_before).outcomes
            assert [(one.collector, one.samples[0].value) for one in down] == [("process", 0)]
            assert down[0].reason is not None
            assert down[0].reason.startswith("gone: ")
            server.start(wait=False)
            began = time.monotonic()
            sensing.until(server, has_snapshot)
            took.append(time.monotonic() - began)
            reply = sensing.until(server, _is_complete)
            assert reply.name == name_before
            after = _all_counters(reply)
            server.wait_ready()

            assert of_pid(sensing.client.collect(), server.pid).name == name_before  # type: ignore[union-attr]
            fallen = {
                series: (value, after.get(series))
                for series, value in before.items()
                if after.get(series, 0) < value
            }
            assert not fallen
        assert min(took) <= FOLLOWED_S, took
        assert name_before == str(port)


def test_stopped_server_is_reported_at_once() -> None:
    with Server("mysql-5.6.24") as server, Idle(server, IDLERS), Sensing(only=[server]) as sensing:
        sensing.until(server, has_snapshot)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            while not is_stopped(server.pid):
                time.sleep(0.01)
            stopwatch = Stopwatch(sensing.pid)
            reply = of_pid(sensing.client.collect(), server.pid)
            took = stopwatch.seconds()
            assert reply is not None
            if not has_process(reply):  # on a busy host, the counters can be late
                reply = sensing.until(server, has_process)
            seen = values(reply, "process")
            still = sensing.until(server, has_snapshot)
        finally:
            os.kill(server.pid, signal.SIGCONT)

        assert took < 1
        assert (seen["mysqld_up", ()], seen["mysqld_stopped", ()]) == (1, 1)
        assert threads(still, "idle") >= IDLERS
