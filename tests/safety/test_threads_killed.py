"""Test that every thread of the sensor and the agent is restarted within a minute after it was killed.

The real programs run, and a signal raises an exception inside a thread. tests/unit/test_supervision.py shows
that a daemon stops notifying the watchdog if a thread hangs.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from safety.agenting import SCRAPE_S, Running, Scrape
from safety.sensing import Sensing, of_pid, values
from scale import few, long
from servers import Server
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.daemon.protocol.messages import ServerReply

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
