"""Test that the sensor reports correct values: several servers, restarts, and a stopped server."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from innoscope.sampling.profile_history import ProfileHistory, report
from innoscope.sampling.render import encode
from safety.debugging import is_stopped
from safety.sensing import Sensing, of_pid, outcome, values
from scale import few
from servers import Server
from workloads import Burn, Crowd, Idle, RowLock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.common.samples import Outcome
    from innoscope.daemon.protocol.messages import Reply, ServerReply

IDLERS = 40
WAITERS = 25
PATIENCE_S = 30
#: Maximum seconds from the exit of a server to the first values of its successor.
FOLLOWED_S = 5


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


def learnt(reply: ServerReply) -> bool:
    return all(outcome(reply, collector).success for collector in ("memory", "probes"))


def threads(reply: ServerReply, wait: str) -> float:
    value = values(reply, "waits")["threads", (wait, "client")] if has_snapshot(reply) else -1
    assert isinstance(value, int)
    return value


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
    with RowLock(mysql, WAITERS):
        before = sensing.until(mysql, lambda reply: threads(reply, "row_lock") == WAITERS)
        began = time.monotonic()
        series = ("thread_seconds", ("row_lock",))
        first = float(str(values(before, "waits")[series]))
        after = sensing.until(
            mysql, lambda reply: float(str(values(reply, "waits")[series])) > first + 4 * WAITERS
        )
        took = time.monotonic() - began
        gained = float(str(values(after, "waits")[series])) - first

    assert gained / took == pytest.approx(WAITERS, rel=0.3)


def test_cpu_time_is_assigned_to_the_right_threads(sensing: Sensing, mariadb: Server) -> None:
    """Compare the CPU time of CPU-bound connections with the kernel's figure for the whole process."""

    def cpu() -> tuple[dict[str, float], float]:
        reply = sensing.until(mariadb, lambda _: True)
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
    reply = sensing.until(mysql, lambda _: True)
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
            cursor, replies = sensing.client.profiles(cursor)
            for chunk in replies["shop"].chunks:
                history.add_chunk(chunk)
            time.sleep(0.2)
    again = sensing.client.profiles(cursor)[1]["shop"].chunks
    rendered = report(replies["shop"].target, history.between(0, 1e12))
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
    reply = sensing.client.collect()

    assert reply.pid == sensing.pid
    assert reply.cpu_seconds == pytest.approx(_cpu_seconds(sensing.pid), abs=0.3)
    assert 10e6 < reply.rss_bytes < 60e6 + 15e6 * len(reply.servers)


def _all_counters(reply: Reply, name: str) -> dict[tuple[str, str, tuple[str, ...]], float]:
    return {
        (one.collector, *series): value
        for server in reply.servers
        if server.name == name
        for one in server.outcomes
        for series, value in counters(one).items()
    }


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

        def all_counters() -> dict[tuple[str, str, tuple[str, ...]], float]:
            return _all_counters(sensing.client.collect(), name_before)

        sensing.until(server, lambda _: all_counters().get(counted, 0) > 0)
        before = all_counters()
        server.kill()
        down = next(one for one in sensing.client.collect().servers if one.name == name_before).outcomes
        assert [(one.collector, one.samples[0].value) for one in down] == [("process", 0)]
        assert down[0].reason is not None
        assert down[0].reason.startswith("gone: ")
        server.start(wait=False)
        began = time.monotonic()
        sensing.until(server, has_snapshot)
        took = time.monotonic() - began
        after = all_counters()
        server.wait_ready()

        assert took <= FOLLOWED_S
        assert of_pid(sensing.client.collect(), server.pid).name == name_before  # type: ignore[union-attr]
        fallen = {
            series: (value, after.get(series))
            for series, value in before.items()
            if after.get(series, 0) < value
        }
        assert not fallen
        assert name_before == str(port)


def test_stopped_server_is_reported_at_once() -> None:
    with Server("mysql-5.6.24") as server, Idle(server, IDLERS), Sensing(only=[server]) as sensing:
        sensing.until(server, has_snapshot)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            while not is_stopped(server.pid):
                time.sleep(0.01)
            began = time.monotonic()
            reply = of_pid(sensing.client.collect(), server.pid)
            took = time.monotonic() - began
            assert reply is not None
            seen = values(reply, "process")
            still = sensing.until(server, has_snapshot)
        finally:
            os.kill(server.pid, signal.SIGCONT)

        assert took < 1
        assert (seen["mysqld_up", ()], seen["mysqld_stopped", ()]) == (1, 1)
        assert threads(still, "idle") >= IDLERS
