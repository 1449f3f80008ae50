"""Test that every thread of the sensor and the agent is restarted within a minute after it was killed.

The real programs run, and a signal raises an exception inside a thread. A thread that serves one connection
is not restarted, but the next connection must get a new one. tests/unit/test_supervision.py shows that a
daemon stops notifying the watchdog if a thread hangs. test_governor_faults.py kills the thread ``detach``.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
import tempfile
from contextlib import ExitStack, closing, suppress
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from innoscope.daemon.http.connections import MAX_CONNECTIONS
from innoscope.daemon.sensor.server import MAX_PER_USER
from safety.agenting import SCRAPE_S, Running, Scrape
from safety.sensing import Sensing, of_pid, values
from scale import few, long
from servers import Server
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from innoscope.daemon.protocol.messages import ServerReply

#: Maximum seconds until a connection is served, or closed after its thread was killed.
SERVED_S = 10.0
MAIN = str(Path(__file__).with_name("faulty_main.py"))
SENSOR = few(
    ("socket", "discovery", "workers", "snapshots", "process", "waits", "memory", "probes", "guard"),
    "snapshots", "workers", "probes",
    reason="all threads are supervised by the same code",
)  # fmt: skip
#: Threads of jobs that run only when a server starts or exits.
JOBS = few(
    ("identifying", "attach", "layouts", "end"), "layouts",
    reason="all jobs run on the same kind of threads",
)  # fmt: skip
AGENT = few(
    ("web", "poll", "watch", "history", "push", "otlp", "notify", "upload", "workers", "sql", "sensor"),
    "watch", "sql",
    reason="all threads are supervised by the same code",
)  # fmt: skip
#: Options that start the threads of watch, push, otlp, notify and upload: a trigger that never fires, and no
#: receivers.
OPTIONS = """[watch]
triggers = ['threads_running>100000']
directory = '{folder}'
[push]
url = 'http://127.0.0.1:9'
[otlp]
url = 'http://127.0.0.1:9'
[notify]
url = 'http://127.0.0.1:9'
[upload]
kind = 'http'
url = 'http://127.0.0.1:9'
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("mysql-5.6.24") as server:
        yield server


@pytest.fixture(scope="module")
def command_file() -> Iterator[Path]:
    """Yield a path that the agent's user can reach. It cannot reach pytest's directories."""
    with tempfile.TemporaryDirectory(prefix="innoscope-faults-") as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder / "command"


@pytest.fixture(scope="module")
def sensing(server: Server, command_file: Path) -> Iterator[Sensing]:
    environment = {"INNOSCOPE_FAULTS": str(command_file)}
    with Sensing(only=[server], program=(sys.executable, MAIN), environment=environment) as sensing:
        until(lambda: works(sensing, server))
        yield sensing


@pytest.fixture(scope="module")
def agent(server: Server, sensing: Sensing, command_file: Path) -> Iterator[Running]:
    os.environ["INNOSCOPE_FAULTS"] = str(command_file)
    options = [OPTIONS.format(folder=command_file.parent)]
    with Running(server, sensor=sensing.path, options=options, program=(sys.executable, MAIN)) as agent:
        agent.until(lambda scrape: scrape.value("sql_up") == 1)
        yield agent
    del os.environ["INNOSCOPE_FAULTS"]


def works(sensing: Sensing, server: Server) -> ServerReply | None:
    """Return the sensor's reply if all collectors of the server succeed, else None."""
    try:
        reply = of_pid(sensing.client.collect(), server.pid)
    except Exception:
        return None
    if reply is None or len(reply.outcomes) != 4 or not all(one.success for one in reply.outcomes):
        return None
    return reply


def attached(sensing: Sensing) -> bool:
    """Return whether probes are attached; after a failure of the governor, they are detached."""
    (rows,) = sensing.client.probes().values()
    return any(row["state"] in {"attached", "sampled"} for row in rows)


def send_command(pid: int, command_file: Path, command: str) -> set[tuple[str, str]]:
    """Send a command; return the names and ids of the threads that ran before the command took effect."""
    answer = command_file.with_suffix(".threads")
    answer.unlink(missing_ok=True)
    command_file.write_text(command)
    os.kill(pid, signal.SIGUSR1)
    until(answer.exists)
    return {(name, number) for name, number in map(str.split, answer.read_text().splitlines())}


def names(pid: int, command_file: Path) -> set[str]:
    """Return the names of the process's threads."""
    return {name for name, _ in send_command(pid, command_file, "list -")}


def is_back(pid: int, command_file: Path, name: str, before: set[tuple[str, str]]) -> bool:
    """Return whether a thread of this name has died, and a new one has been started.

    A thread without a job dies only when it gets one, and a lane may get none (common/workers.py).
    """
    old = {number for one, number in before if one == name}
    now = {number for one, number in send_command(pid, command_file, "list -") if one == name}
    return not old <= now and bool(now - old)


@pytest.mark.parametrize("name", SENSOR)
def test_a_killed_thread_of_the_sensor_is_restarted(
    sensing: Sensing, server: Server, command_file: Path, name: str
) -> None:
    until(lambda: works(sensing, server) and name in names(sensing.pid, command_file))
    before = send_command(sensing.pid, command_file, f"kill {name}")
    assert name in {one for one, _ in before}, before

    until(lambda: works(sensing, server) and is_back(sensing.pid, command_file, name, before))
    until(lambda: works(sensing, server))


@pytest.mark.parametrize("name", JOBS)
def test_a_killed_thread_of_jobs_is_replaced_when_there_is_a_job(command_file: Path, name: str) -> None:
    """Restart a server once before the thread is killed, so that the thread exists, and once afterwards.

    While the thread ``end`` exists, it is detaching probes, so the exception might not end it. In any case,
    the probes of both earlier processes must be detached, so that only the last governor remains.
    """
    environment = {"INNOSCOPE_FAULTS": str(command_file)}
    with (
        Server("mysql-5.6.24") as other,
        Sensing(only=[other], program=(sys.executable, MAIN), environment=environment) as sensing,
    ):
        until(lambda: complete(sensing, other))
        restart(sensing, other)
        until(lambda: name in names(sensing.pid, command_file))
        before = send_command(sensing.pid, command_file, f"kill {name}")
        restart(sensing, other)
        if name == "end":
            until(lambda: governors(sensing, command_file) == 1)
        else:
            until(lambda: is_back(sensing.pid, command_file, name, before))


def governors(sensing: Sensing, command_file: Path) -> int:
    """Return the number of governors, one for each process with probes."""
    return sum(name == "governor" for name, _ in send_command(sensing.pid, command_file, "list -"))


def restart(sensing: Sensing, server: Server) -> None:
    """Restart the server, and wait until the sensor has probes and statements of the new process."""
    server.stop()
    server.start()
    until(lambda: complete(sensing, server))


def complete(sensing: Sensing, server: Server) -> bool:
    """Return whether all collectors succeed, probes are attached, and snapshots have statements."""
    reply = works(sensing, server)
    return reply is not None and attached(sensing) and values(reply, "waits")["statements_up", ()] == 1


@long("the pause is a minute; tests/safety/test_governor_faults.py shortens it")
def test_a_killed_governor_detaches_its_probes_and_attaches_them_again(
    sensing: Sensing, server: Server, command_file: Path
) -> None:
    """Check that the governor catches the exception, logs it, and attaches the probes again after a pause."""
    until(lambda: works(sensing, server))
    before = sensing.log.count("governor failed, probes detached")
    send_command(sensing.pid, command_file, "kill governor")

    until(lambda: sensing.log.count("governor failed, probes detached") > before)
    until(lambda: attached(sensing))


@pytest.mark.parametrize("name", AGENT)
def test_a_killed_thread_of_the_agent_is_restarted(agent: Running, command_file: Path, name: str) -> None:
    def scraped() -> bool:
        # A connection that the killed thread had just accepted may stay open without a response.
        try:
            status, body = agent.get("/metrics", SCRAPE_S)
        except (OSError, HTTPException):
            return False
        return status == HTTPStatus.OK and Scrape(0.0, body.decode()).value("sql_up") == 1

    until(lambda: scraped() and name in names(agent.pid, command_file))
    before = send_command(agent.pid, command_file, f"kill {name}")
    assert name in {one for one, _ in before}, before

    until(lambda: scraped() and is_back(agent.pid, command_file, name, before))
    until(scraped)


def frame(body: bytes) -> bytes:
    """Return a message as the sensor's clients send it."""
    return struct.pack("!I", len(body)) + body


@pytest.mark.parametrize("whole", [False, True], ids=["half a request", "a request"])
def test_killed_threads_of_the_sensors_clients_keep_no_slot(
    sensing: Sensing, server: Server, command_file: Path, *, whole: bool
) -> None:
    def connect() -> socket.socket:
        wire = socket.socket(socket.AF_UNIX)
        wire.connect(str(sensing.path))
        return wire

    until(lambda: works(sensing, server))
    request = frame(b'{"call": "collect"}')
    kill_connections(sensing.pid, command_file, "client", connect, request, whole=whole, limit=MAX_PER_USER)
    until(lambda: works(sensing, server), within_s=SERVED_S)


@pytest.mark.parametrize("whole", [False, True], ids=["half a request", "a request"])
def test_killed_threads_of_the_agents_connections_keep_no_slot(
    agent: Running, command_file: Path, *, whole: bool
) -> None:
    def connect() -> socket.socket:
        return socket.create_connection(("127.0.0.1", agent.port))

    until(lambda: agent.get("/metrics")[0] == HTTPStatus.OK)
    request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    kill_connections(agent.pid, command_file, "http", connect, request, whole=whole, limit=MAX_CONNECTIONS)
    assert agent.get("/metrics", SERVED_S)[0] == HTTPStatus.OK


def kill_connections(
    pid: int,
    command_file: Path,
    name: str,
    connect: Callable[[], socket.socket],
    request: bytes,
    *,
    whole: bool,
    limit: int,
) -> None:
    """Kill more threads than the ``limit`` of connections, in rounds. Check that no socket stays open.

    The threads are killed while they receive a request or, if the ``whole`` request is sent, serve it.
    """

    def running() -> int:
        return sum(one == name for one, _ in send_command(pid, command_file, "list -"))

    before, killed, half, at_once = sockets(pid), 0, len(request) // 2, limit // 2
    while killed <= limit:
        with ExitStack() as stack:
            wires = [stack.enter_context(closing(connect())) for _ in range(at_once)]
            for wire in wires:
                wire.settimeout(SERVED_S)
                wire.sendall(request[:half])
            until(lambda: running() >= at_once, every_s=0)
            for wire in wires:
                wire.sendall(request[half:] if whole else b"")
            send_command(pid, command_file, f"kill {name}")
            killed += at_once
            for wire in wires:
                with suppress(BrokenPipeError, ConnectionResetError):
                    wire.sendall(b"x")  # wakes a thread that is reading
                    while wire.recv(1 << 16):  # until the thread closes the connection
                        pass
        until(lambda: running() == 0)
    until(lambda: sockets(pid) <= before, lambda: f"{sockets(pid)} sockets instead of {before}")


def sockets(pid: int) -> int:
    """Return the number of a process's sockets."""
    found = 0
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # the descriptor has been closed
            found += str(descriptor.readlink()).startswith("socket:")
    return found
