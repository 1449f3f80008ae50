"""Test the values that the sensor reports for several servers, after restarts, and for a stopped server."""

from __future__ import annotations

import os
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import pytest

from innoscope.sampling.profile_history import ProfileHistory, report
from innoscope.sampling.render import encode
from safety.sensing import Sensing, outcome, values
from servers import Server
from workloads import Burn, Idle, RowLock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.daemon.protocol.messages import ServerReply

IDLERS = 40
WAITERS = 25
PATIENCE_S = 60


@pytest.fixture(scope="module")
def mysql() -> Iterator[Server]:
    with Server("mysql-5.6.24") as server:
        yield server


@pytest.fixture(scope="module")
def mariadb() -> Iterator[Server]:
    with Server("mariadb-11.4.5") as server:
        yield server


@pytest.fixture(scope="module")
def sensing(mysql: Server, mariadb: Server) -> Iterator[Sensing]:
    with Sensing("--server", f"shop={mysql.socket}", "--interval", 0.5, only=[mysql, mariadb]) as sensing:
        sensing.until(mysql, has_snapshot)
        sensing.until(mariadb, has_snapshot)
        yield sensing


def has_snapshot(reply: ServerReply) -> bool:
    return outcome(reply, "waits").success


def has_process(reply: ServerReply) -> bool:
    """Return whether the process's figures were read in time, which a busy host can prevent."""
    return outcome(reply, "process").success


def learnt(reply: ServerReply) -> bool:
    return all(outcome(reply, collector).success for collector in ("memory", "probes"))


def threads(reply: ServerReply, wait: str) -> float:
    value = values(reply, "waits")["threads", (wait, "client")] if has_snapshot(reply) else -1
    assert isinstance(value, int)
    return value


def test_two_servers_are_observed_at_once(sensing: Sensing, mysql: Server, mariadb: Server) -> None:
    with Idle(mysql, IDLERS), RowLock(mysql, WAITERS), Idle(mariadb, 2 * IDLERS):
        sensing.until(mysql, lambda reply: threads(reply, "row_lock") == WAITERS)
        # the idle connections and 3 more: the monitors of both workloads, and the holder of the row lock
        first = sensing.until(mysql, lambda reply: threads(reply, "idle") == IDLERS + 3)
        second = sensing.until(mariadb, lambda reply: threads(reply, "idle") == 2 * IDLERS + 1)

    assert (first.name, second.name) == ("shop", str(mariadb.port))
    assert threads(first, "row_lock") == WAITERS
    assert threads(second, "row_lock") == 0
    assert (first.target.flavour, second.target.flavour) == ("mysql", "mariadb")


def test_thread_seconds_grow_in_proportion_to_the_threads(sensing: Sensing, mysql: Server) -> None:
    """Use the median over periods of two seconds: a process may get no CPU time for some seconds."""
    seen: list[tuple[float, float]] = []

    def gained(reply: ServerReply) -> float:
        if not has_snapshot(reply):
            return 0
        seconds = float(str(values(reply, "waits")["thread_seconds", ("row_lock",)]))
        seen.append((time.monotonic(), seconds))
        return seconds - seen[0][1]

    with RowLock(mysql, WAITERS):
        sensing.until(mysql, lambda reply: threads(reply, "row_lock") == WAITERS)
        sensing.until(mysql, lambda reply: gained(reply) > 10 * WAITERS)

    pairs = zip(seen, seen[len(seen) // 5 :], strict=False)
    rates = [(after - before) / (ended - began) for (began, before), (ended, after) in pairs]
    assert median(rates) == pytest.approx(WAITERS, rel=0.3)
    (began, first), (ended, last) = seen[0], seen[-1]
    assert (last - first) / (ended - began) == pytest.approx(WAITERS, rel=0.6)


def test_cpu_time_is_assigned_to_the_right_threads(sensing: Sensing, mariadb: Server) -> None:
    """Compare the CPU time of CPU-bound connections with the kernel's figure for the whole process."""

    def cpu() -> tuple[dict[str, float], float]:
        reply = sensing.until(mariadb, has_process)
        seen = values(reply, "process")
        groups = {
            labels[0]: float(str(value))
            for (name, labels), value in seen.items()
            if name == "mysqld_cpu_seconds"
        }
        return groups, _cpu_seconds(mariadb.pid)

    with Burn(mariadb, 2):
        deadline = time.monotonic() + PATIENCE_S
        groups, whole = cpu()
        later, total = groups, whole
        while later["connection"] - groups["connection"] < 5 and time.monotonic() < deadline:
            time.sleep(0.2)
            later, total = cpu()

    gained = {kind: later[kind] - groups[kind] for kind in groups}
    assert gained["connection"] >= 0.9 * sum(gained.values())
    # each of the sensor's two samples may be 5 s old
    assert sum(gained.values()) == pytest.approx(total - whole, rel=0.6)


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time of the process and of its reaped children (which compile probes)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def test_process_metrics_equal_those_of_proc(sensing: Sensing, mysql: Server) -> None:
    reply = sensing.until(mysql, has_process)
    seen = values(reply, "process")

    assert seen["mysqld_up", ()] == 1
    assert seen["mysqld_traced", ()] == 0
    assert seen["mysqld_os_threads", ()] == len(list(Path(f"/proc/{mysql.pid}/task").iterdir()))
    assert seen["mysqld_open_files", ()] == len(list(Path(f"/proc/{mysql.pid}/fd").iterdir()))
    age = time.time() - float(str(seen["mysqld_start_time_seconds", ()]))
    assert 0 <= age < 3600
    version = reply.target.version_text
    assert seen["mysqld_info", ("mysql", version, reply.target.build_id or "", "symtab")] == 1


def test_profiles_are_transferred_and_rendered(sensing: Sensing, mysql: Server) -> None:
    """Fetch all chunks as the agent does, and render them as ``innoscope stacks`` does."""
    history = ProfileHistory()
    cursor: dict[str, int] = {}

    def has_waiters() -> bool:
        stacks = history.between(0, 1e12).counts
        return any("lock_wait_suspend_thread" in stack.labels for stack in stacks)

    with RowLock(mysql, WAITERS):
        deadline = time.monotonic() + PATIENCE_S
        while not has_waiters():
            assert time.monotonic() < deadline
            page = sensing.client.profiles(cursor)
            cursor = page.cursor
            for chunk in page.servers["shop"].chunks:
                history.add_chunk(chunk)
            time.sleep(0.2)
    again = sensing.client.profiles(cursor).servers["shop"].chunks
    rendered = report(page.servers["shop"].target, history.between(0, 1e12))
    text = encode(rendered, "text").decode()

    assert again == [] or again[0].start > history.between(0, 1e12).end, "sent twice"
    assert "row lock" in text.splitlines()[0]
    assert "lock_wait_suspend_thread" in text
    assert encode(rendered, "pprof")[:2] == b"\x1f\x8b"


def test_hello_and_probes_name_the_servers(sensing: Sensing, mariadb: Server) -> None:
    hello = sensing.client.hello()

    assert hello["pid"] == sensing.pid
    assert {"shop", str(mariadb.port)} <= set(hello["servers"])
    assert "shop" in sensing.client.probes()


def test_servers_not_selected_are_ignored(sensing: Sensing, mysql: Server, mariadb: Server) -> None:
    with Server("mysql-5.5.9") as other:
        reply = sensing.until(mariadb, has_snapshot)
        with Server("mariadb-10.11"), Sensing(only=[other]) as choosy:
            choosy.until(other, has_snapshot)
            seen = choosy.client.hello()["servers"]

    assert reply.target.pid == mariadb.pid
    assert set(sensing.client.hello()["servers"]) == {"shop", str(mariadb.port)}
    assert seen == [str(other.port)]


def test_sensor_reports_its_own_cost(sensing: Sensing, mysql: Server, mariadb: Server) -> None:
    """Compare the reported CPU time with the kernel's figure, and check that the memory size is plausible."""
    for server in (mysql, mariadb):
        sensing.until(server, learnt)
    before = _cpu_seconds(sensing.pid)
    reply = sensing.client.collect()
    after = _cpu_seconds(sensing.pid)

    assert reply.pid == sensing.pid
    # the kernel's figure is the sum of four times, each of which is rounded down to a tick
    assert before <= reply.cpu_seconds <= after + 4 / os.sysconf("SC_CLK_TCK")
    assert 10e6 < reply.rss_bytes < 60e6 + 15e6 * len(reply.servers)
