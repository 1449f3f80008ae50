"""The sensor on real servers: what it says is true, of several, over restarts, of one that is stopped."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from innoscope.sampling.profile_history import ProfileHistory, report
from innoscope.sampling.render import encode
from live import figures
from safety.debugging import is_stopped
from safety.sensing import Sensing, of_pid, outcome, values
from scale import few
from servers import Server
from workloads import Burn, Crowd, Idle, RowLock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from innoscope.common.samples import Outcome
    from innoscope.daemon.protocol.messages import Reply, ServerReply

IDLERS = 40
WAITERS = 25
PATIENCE_S = 30
#: From the death of a server to the first figures of its successor.
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
        until(sensing, mysql, looked)
        until(sensing, mariadb, looked)
        yield sensing


def until(sensing: Sensing, server: Server, holds: Callable[[ServerReply], bool]) -> ServerReply:
    """Ask until what is told of the server is so."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        told = of_pid(sensing.client.collect(), server.pid)
        if told is not None and holds(told):
            return told
        assert time.monotonic() < deadline, f"never so: {told}\n{sensing.log}"
        time.sleep(0.05)


def looked(told: ServerReply) -> bool:
    return outcome(told, "waits").success


def learnt(told: ServerReply) -> bool:
    return all(outcome(told, collector).success for collector in ("memory", "probes"))


def threads(told: ServerReply, wait: str) -> float:
    value = values(told, "waits")["threads", (wait,)] if looked(told) else -1
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


def test_two_servers_of_different_kinds_at_once(sensing: Sensing, mysql: Server, mariadb: Server) -> None:
    with Idle(mysql, IDLERS), RowLock(mysql, WAITERS), Idle(mariadb, 2 * IDLERS):
        until(sensing, mysql, lambda told: threads(told, "row_lock") == WAITERS)
        # beside the idlers: the workloads' monitors, and the one that holds the row's lock
        first = until(sensing, mysql, lambda told: threads(told, "idle") == IDLERS + 3)
        second = until(sensing, mariadb, lambda told: threads(told, "idle") == 2 * IDLERS + 1)

    assert (first.name, second.name) == ("shop", str(mariadb.port))
    assert threads(first, "row_lock") == WAITERS
    assert threads(second, "row_lock") == 0
    assert (first.target.flavour, second.target.flavour) == ("mysql", "mariadb")


def test_thread_seconds_grow_with_the_threads(sensing: Sensing, mysql: Server) -> None:
    with RowLock(mysql, WAITERS):
        before = until(sensing, mysql, lambda told: threads(told, "row_lock") == WAITERS)
        began = time.monotonic()
        series = ("thread_seconds", ("row_lock",))
        first = float(str(values(before, "waits")[series]))
        after = until(
            sensing, mysql, lambda told: float(str(values(told, "waits")[series])) > first + 4 * WAITERS
        )
        took = time.monotonic() - began
        gained = float(str(values(after, "waits")[series])) - first

    assert gained / took == pytest.approx(WAITERS, rel=0.3)


def test_cpu_time_is_of_the_right_threads(sensing: Sensing, mariadb: Server) -> None:
    """Connections that compute: their group gains what the kernel says that the whole process gained."""

    def cpu() -> tuple[dict[str, float], float]:
        told = until(sensing, mariadb, lambda _: True)
        seen = values(told, "process")
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
    assert sum(gained.values()) == pytest.approx(total - whole, rel=0.6), (
        "read at most 5 s ago, at either end"
    )


def _cpu_seconds(pid: int) -> float:
    """Of the process, and of the children that it has reaped (the one that compiles probes)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def test_what_the_kernel_says_of_the_process(sensing: Sensing, mysql: Server) -> None:
    told = until(sensing, mysql, lambda _: True)
    seen = values(told, "process")

    assert seen["mysqld_up", ()] == 1
    assert seen["mysqld_traced", ()] == 0
    assert seen["mysqld_os_threads", ()] == len(list(Path(f"/proc/{mysql.pid}/task").iterdir()))
    assert seen["mysqld_open_files", ()] == len(list(Path(f"/proc/{mysql.pid}/fd").iterdir()))
    age = time.time() - float(str(seen["mysqld_start_time_seconds", ()]))
    assert 0 <= age < 3600
    version = told.target.version_text
    assert seen["mysqld_info", ("mysql", version, told.target.build_id or "", "symtab")] == 1


def test_profiles_travel_and_render(sensing: Sensing, mysql: Server) -> None:
    """All chunks, fetched as the agent does it, give what ``innoscope stacks`` would print."""
    kept = ProfileHistory()
    cursor: dict[str, int] = {}
    with RowLock(mysql, WAITERS):
        deadline = time.monotonic() + PATIENCE_S
        while not any("lock_wait_suspend_thread" in stack.labels for stack in kept.between(0, 1e12).counts):
            assert time.monotonic() < deadline
            cursor, told = sensing.client.profiles(cursor)
            for chunk in told["shop"].chunks:
                kept.add_chunk(chunk)
            time.sleep(0.2)
    again = sensing.client.profiles(cursor)[1]["shop"].chunks
    text = encode(report(told["shop"].target, kept.between(0, 1e12)), "text").decode()

    assert again == [] or again[0].start > kept.between(0, 1e12).end, "told twice"
    assert "row lock" in text.splitlines()[0]
    assert "lock_wait_suspend_thread" in text
    assert encode(report(told["shop"].target, kept.between(0, 1e12)), "pprof")[:2] == b"\x1f\x8b"


def test_hello_and_probes(sensing: Sensing, mariadb: Server) -> None:
    hello = sensing.client.hello()

    assert hello["pid"] == sensing.pid
    assert {"shop", str(mariadb.port)} <= set(hello["servers"])
    assert "shop" in sensing.client.probes()


def test_others_are_passed_by(sensing: Sensing, mysql: Server, mariadb: Server) -> None:
    with Server("mysql-5.5.9") as other:
        told = until(sensing, mariadb, looked)
        with Server("mariadb-10.11"), Sensing(only=[other]) as choosy:
            until(choosy, other, looked)
            seen = choosy.client.hello()["servers"]

    assert told.target.pid == mariadb.pid
    assert set(sensing.client.hello()["servers"]) == {"shop", str(mariadb.port)}
    assert seen == [str(other.port)]


def test_its_own_cost_is_told(sensing: Sensing, mysql: Server, mariadb: Server) -> None:
    """Once it has learnt both servers; what the daemons take beside one is `bench agent`'s to measure."""
    for server in (mysql, mariadb):
        until(sensing, server, learnt)
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
def test_a_server_that_is_killed_and_restarted_goes_on(name: str) -> None:
    """Under its old name, within 5 s, and no counter falls."""
    with (
        Server(name) as server,
        Sensing("--interval", 0.2, only=[server]) as sensing,
        Crowd(server, IDLERS, "mysql"),
    ):
        told = until(sensing, server, lambda told: looked(told) and threads(told, "idle") >= IDLERS)
        called, port = told.name, server.port
        counted = "waits", "thread_seconds", ("idle",)
        until(sensing, server, lambda _: _all_counters(sensing.client.collect(), called).get(counted, 0) > 0)
        before = _all_counters(sensing.client.collect(), called)
        server.kill()
        down = next(one for one in sensing.client.collect().servers if one.name == called).outcomes
        assert [(one.collector, one.samples[0].value) for one in down] == [("process", 0)]
        assert down[0].reason is not None
        assert down[0].reason.startswith("gone: ")
        server.start(wait=False)
        began = time.monotonic()
        until(sensing, server, looked)
        took = time.monotonic() - began
        after = _all_counters(sensing.client.collect(), called)
        server.wait_ready()

        assert took <= FOLLOWED_S
        assert of_pid(sensing.client.collect(), server.pid).name == called  # type: ignore[union-attr]
        fallen = {
            series: (value, after.get(series))
            for series, value in before.items()
            if after.get(series, 0) < value
        }
        assert not fallen
        figures.record(
            "sensor", f"{name}/restart", f"first look at the successor after {took:.1f} s", seconds=took
        )
        assert called == str(port)


def test_a_server_that_stands_still_is_told_at_once() -> None:
    with Server("mysql-5.6.24") as server, Idle(server, IDLERS), Sensing(only=[server]) as sensing:
        until(sensing, server, looked)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            while not is_stopped(server.pid):
                time.sleep(0.01)
            began = time.monotonic()
            told = of_pid(sensing.client.collect(), server.pid)
            took = time.monotonic() - began
            assert told is not None
            seen = values(told, "process")
            still = until(sensing, server, looked)
        finally:
            os.kill(server.pid, signal.SIGCONT)

        assert took < 1
        assert (seen["mysqld_up", ()], seen["mysqld_stopped", ()]) == (1, 1)
        assert threads(still, "idle") >= IDLERS
        figures.record("sensor", "stopped server", f"collect() took {took * 1e3:.0f} ms", seconds=took)
