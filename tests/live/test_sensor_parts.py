"""Test a sensor in the test's own process, with failing collectors and a process that imitates a server."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from innoscope.common.samples import Sample
from innoscope.daemon.protocol.messages import BadMessage, decode_reply
from innoscope.daemon.sensor.main import MAX_ENDED, Sensor, SensorSettings
from innoscope.target.proc import ProcFs
from safety.pretender import Pretender
from servers import Keeper
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from innoscope.common.samples import Outcome
    from innoscope.target.model import Target

#: The sensor's time limits in these tests, in seconds.
LIMIT_S = 2.0
#: Number of concurrent requests.
REQUESTS = 8


@dataclass(frozen=True, slots=True)
class Only(ProcFs):
    """A /proc that shows only the given processes and hides others, such as the servers of other tests."""

    seen: Sequence[int] = ()

    def pids(self) -> list[int]:
        return [pid for pid in self.seen if self.exists(pid)]


@dataclass(frozen=True, slots=True)
class Stalling(Only):
    """A /proc in which the executable of one process is on a file system that does not respond."""

    stalled: int = 0
    answers: threading.Event = field(default_factory=threading.Event)

    def inside(self, pid: int, path: str) -> str:
        if pid == self.stalled:
            self.answers.wait(60)
        return ProcFs.inside(self, pid, path)


class Hanging:
    """A collector that does not return until it is released."""

    name = "memory"
    timeout = 30.0

    def __init__(self, _: Target) -> None:
        self.released = threading.Event()
        self.closed = False

    def collect(self) -> Iterable[Sample]:
        self.released.wait(60)
        return [Sample("spin_waits", 5)]

    def status(self) -> list[dict[str, Any]]:
        return [{"probe": "p", "attached": True}]

    def close(self) -> None:
        self.closed = True
        self.released.set()


class Throwing:
    """A collector that raises an unexpected error."""

    name = "probes"
    timeout = LIMIT_S

    def __init__(self, _: Target) -> None:
        pass

    def collect(self) -> Iterable[Sample]:
        raise LookupError("nobody expected this")


def unmakeable(_: Target) -> Throwing:
    raise OSError(13, "not today")


@pytest.fixture(autouse=True)
def long_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extend the sensor's time limits, so that a collector that answers does so in time on a busy host."""
    monkeypatch.setattr("innoscope.daemon.sensor.watch.PATIENCE_S", LIMIT_S)
    monkeypatch.setattr("innoscope.daemon.sensor.identification._IDENTIFY_S", LIMIT_S)
    monkeypatch.setattr("innoscope.daemon.sensor.main._END_S", 60.0)
    monkeypatch.setattr("innoscope.metrics.collectors.process.ProcessCollector.timeout", LIMIT_S)


@pytest.fixture
def pretender(tmp_path: Path) -> Iterator[Pretender]:
    with Pretender(tmp_path) as pretender:
        yield pretender


def find(sensor: Sensor, pid: int) -> None:
    """Search until the sensor watches the process. On a busy host, it may not be identified in one search."""

    def watched() -> bool:
        sensor.tick()
        return any(slot.target.pid == pid for slot in list(sensor._slots.values()))

    until(watched)


def outcomes(sensor: Sensor, pid: int) -> dict[str, Outcome]:
    reply = decode_reply(sensor.collect())
    return {
        one.collector: one for server in reply.servers if server.target.pid == pid for one in server.outcomes
    }


def test_collectors_that_hang_raise_or_cannot_be_made_are_reported(pretender: Pretender) -> None:
    hanging: list[Hanging] = []

    def factory(target: Target) -> Hanging:
        hanging.append(Hanging(target))
        return hanging[-1]

    sensor = Sensor(SensorSettings(), [factory, Throwing, unmakeable], proc=Only(seen=(pretender.pid,)))
    find(sensor, pretender.pid)
    try:
        began = time.monotonic()
        found = outcomes(sensor, pretender.pid)
        first = time.monotonic() - began
        again = outcomes(sensor, pretender.pid)
        probes = sensor.probes()["servers"]
    finally:
        sensor.close()

    assert first < Hanging.timeout
    assert found["process"].success
    assert found["memory"].reason == f"timeout: no answer within {LIMIT_S:g} s"
    assert str(again["memory"].reason).startswith("timeout: still running after ")
    assert found["probes"].reason == "error: LookupError: nobody expected this"
    assert str(found["unmakeable"].reason).startswith("rights: PermissionError")
    assert list(probes.values()) == [[{"probe": "p", "attached": True}]]
    assert [one.closed for one in hanging] == [True]


def test_a_process_whose_files_do_not_answer_delays_no_other_server(
    pretender: Pretender, tmp_path: Path
) -> None:
    (tmp_path / "stalled").mkdir()
    with Pretender(tmp_path / "stalled") as stalled:
        proc = Stalling(seen=(stalled.pid, pretender.pid), stalled=stalled.pid)
        sensor = Sensor(SensorSettings(), proc=proc)
        try:
            took = []
            for _ in range(6):
                began = time.monotonic()
                sensor.tick()
                took.append(time.monotonic() - began)
            find(sensor, pretender.pid)
            watched = [server.target.pid for server in decode_reply(sensor.collect()).servers]
        finally:
            proc.answers.set()
            sensor.close()

    assert watched == [pretender.pid]
    assert max(took) < 30, took  # much less than the stalled process takes
    # Only the first tick waits for the stalled process. A busy host may delay one of the others.
    assert sorted(took[1:])[-2] < LIMIT_S, took


def test_concurrent_requests_share_a_run(pretender: Pretender) -> None:
    requested = threading.Semaphore(0)

    class Counting(Throwing):
        runs = 0

        def collect(self) -> Iterable[Sample]:
            Counting.runs += 1
            if Counting.runs == 1:
                for _ in range(REQUESTS):
                    requested.acquire(timeout=60)
            time.sleep(0.2)  # the last thread has yet to make its request
            return []

    def request() -> None:
        requested.release()
        sensor.collect()

    sensor = Sensor(SensorSettings(), [Counting], proc=Only(seen=(pretender.pid,)))
    find(sensor, pretender.pid)
    try:
        threads = [threading.Thread(target=request) for _ in range(REQUESTS)]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = time.monotonic() - began
    finally:
        sensor.close()

    assert Counting.runs <= 3
    assert took < REQUESTS * LIMIT_S


def test_ended_servers_are_reported_down_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    sensor = Sensor(SensorSettings(), proc=Only(seen=ended))
    for number in range(MAX_ENDED + 3):
        home = tmp_path / str(number)
        home.mkdir()
        monkeypatch.chdir(home)  # the process's data directory, by which a restart is detected
        with Pretender(home) as pretender:
            ended.append(pretender.pid)
            find(sensor, pretender.pid)
    try:
        found = outcomes(sensor, ended[-1])
        sensor.tick()
        left = {server.target.pid for server in decode_reply(sensor.collect()).servers}
    finally:
        sensor.close()

    assert found["process"].samples == (Sample("mysqld_up", 0),)
    assert found["process"].reason == f"gone: process {ended[-1]} has exited"
    assert left == set(ended[-MAX_ENDED:])


_LISTENS_LATER = """
import socket, sys
sys.stdin.readline()
wire = socket.socket(); wire.bind(("127.0.0.1", 0)); wire.listen()
print(wire.getsockname()[1], flush=True)
sys.stdin.readline()
"""


def test_server_is_renamed_once_its_port_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the sensor find a server that does not listen yet, and name it after its data directory."""
    monkeypatch.setattr("innoscope.daemon.sensor.main._RETRY_S", 0.0)
    executable = tmp_path / "mysqld"
    shutil.copy2(Path(sys.executable).resolve(), executable)
    with Keeper() as keeper, subprocess.Popen(
        [executable, "-I", "-c", _LISTENS_LATER], cwd=tmp_path, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        keeper.watch(process.pid)
        assert process.stdin is not None
        assert process.stdout is not None
        sensor = Sensor(SensorSettings(), proc=Only(seen=(process.pid,)))
        try:
            find(sensor, process.pid)
            before = sensor.hello()["servers"]
            process.stdin.write("listen\n")
            process.stdin.flush()
            port = process.stdout.readline().strip()

            def renamed() -> bool:
                sensor.tick()
                return bool(sensor.hello()["servers"] != before)

            until(renamed)
            after = decode_reply(sensor.collect()).servers
        finally:
            sensor.close()
            process.kill()

    assert before == [str(tmp_path)]
    assert [server.name for server in after] == [port]
    assert after[0].target.port == int(port)


@pytest.mark.parametrize(
    "request_", [{}, {"call": "stop"}, {"call": None}, {"call": "profiles", "cursor": 7}]
)
def test_unknown_and_malformed_calls_are_refused(request_: dict[str, Any]) -> None:
    with pytest.raises(BadMessage):
        Sensor(SensorSettings()).handle(request_)
