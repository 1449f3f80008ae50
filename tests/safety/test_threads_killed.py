"""Kill each thread of sensor and agent in turn: it is back within a minute.

The programs are the real ones, on a real server; a signal raises an exception inside the thread.
tests/unit/test_supervision.py shows that one which hangs stops the watchdog.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from safety.agenting import Running
from safety.sensing import Sensing, of_pid
from scale import few, long
from servers import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BACK_S = 60.0
MAIN = str(Path(__file__).with_name("faulty_main.py"))
SENSOR = few(
    ("socket", "discovery", "workers", "looks", "process", "waits", "memory", "probes", "guard"),
    "looks", "workers", "probes",
    reason="all threads are supervised by the same code",
)  # fmt: skip
AGENT = few(
    ("web", "poll", "watch", "push", "workers", "sql", "sensor"),
    "watch", "sql",
    reason="all threads are supervised by the same code",
)  # fmt: skip
#: A rule that never holds, and a receiver that is not there.
OPTIONS = """[watch]
triggers = ['threads_running>100000']
directory = '{folder}'
[push]
url = 'http://127.0.0.1:9'
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("mysql-5.6.24") as server:
        yield server


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("orders")
    folder.chmod(0o777)
    folder.parent.chmod(0o755)
    folder.parent.parent.chmod(0o755)
    return folder / "order"


@pytest.fixture(scope="module")
def sensing(server: Server, orders: Path) -> Iterator[Sensing]:
    environment = {"INNOSCOPE_FAULTS": str(orders)}
    with Sensing(only=[server], program=(sys.executable, MAIN), environment=environment) as sensing:
        until(lambda: works(sensing, server))
        yield sensing


@pytest.fixture(scope="module")
def agent(server: Server, sensing: Sensing, orders: Path) -> Iterator[Running]:
    os.environ["INNOSCOPE_FAULTS"] = str(orders)
    options = [OPTIONS.format(folder=orders.parent)]
    with Running(server, sensor=sensing.path, options=options, program=(sys.executable, MAIN)) as agent:
        agent.until(lambda scrape: scrape.value("sql_up") == 1)
        yield agent
    del os.environ["INNOSCOPE_FAULTS"]


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + BACK_S
    while not holds():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.1)


def works(sensing: Sensing, server: Server) -> bool:
    """Whether all collectors of the server do."""
    try:
        told = of_pid(sensing.client.collect(), server.pid)
    except Exception:
        return False
    return told is not None and len(told.outcomes) == 4 and all(one.success for one in told.outcomes)


def attached(sensing: Sensing) -> bool:
    """Return whether probes are on. While the governor has failed, all of them are off."""
    (rows,) = sensing.client.probes().values()
    return any(row["state"] in {"attached", "sampled"} for row in rows)


def obeyed(pid: int, orders: Path, order: str) -> set[tuple[str, str]]:
    """Give an order; the threads that there were, by name and number."""
    answer = orders.with_suffix(".threads")
    answer.unlink(missing_ok=True)
    orders.write_text(order)
    os.kill(pid, signal.SIGUSR1)
    until(answer.exists)
    return {(name, number) for name, number in map(str.split, answer.read_text().splitlines())}


def names(pid: int, orders: Path) -> set[str]:
    """Return the names of its threads."""
    return {name for name, _ in obeyed(pid, orders, "list -")}


def is_back(pid: int, orders: Path, name: str, before: set[tuple[str, str]]) -> bool:
    """Whether there is a thread of that name, and it is another one."""
    old = {number for one, number in before if one == name}
    now = {number for one, number in obeyed(pid, orders, "list -") if one == name}
    return bool(now) and not now & old


@pytest.mark.parametrize("name", SENSOR)
def test_a_thread_of_the_sensor_comes_back(
    sensing: Sensing, server: Server, orders: Path, name: str
) -> None:
    until(lambda: works(sensing, server) and name in names(sensing.pid, orders))
    before = obeyed(sensing.pid, orders, f"kill {name}")
    assert name in {one for one, _ in before}, before

    until(lambda: works(sensing, server) and is_back(sensing.pid, orders, name, before))
    until(lambda: works(sensing, server))


@long("the pause is a minute; tests/safety/test_governor_faults.py shortens it")
def test_a_governor_that_is_killed_takes_its_probes_off_and_on_again(
    sensing: Sensing, server: Server, orders: Path
) -> None:
    """Its thread catches what kills it, logs the failure, and puts probes back on after a pause."""
    until(lambda: works(sensing, server))
    before = sensing.log.count("governor failed, probes detached")
    obeyed(sensing.pid, orders, "kill governor")

    until(lambda: sensing.log.count("governor failed, probes detached") > before)
    until(lambda: attached(sensing))


@pytest.mark.parametrize("name", AGENT)
def test_a_thread_of_the_agent_comes_back(agent: Running, orders: Path, name: str) -> None:
    def scraped() -> bool:
        try:
            return agent.scrape().value("sql_up") == 1
        except (OSError, AssertionError):
            return False

    until(lambda: scraped() and name in names(agent.pid, orders))
    before = obeyed(agent.pid, orders, f"kill {name}")
    assert name in {one for one, _ in before}, before

    until(lambda: scraped() and is_back(agent.pid, orders, name, before))
    until(scraped)
