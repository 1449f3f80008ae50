"""gdb dies, stops or hangs, the tool or the watchdog is killed: the server runs on, untraced, within 2 s."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from innoscope.errors import InnoscopeError, NoSuchProcess
from innoscope.target.discover import find_one
from innoscope.toggles import watchdog_main
from innoscope.toggles.gdbway import GdbWriter
from innoscope.toggles.model import ChangeFailed, NotOnThisServer, Refused, Way
from safety.debugging import faulty_gdb
from safety.toggling import KILLS, WELL_S
from servers import Server, ensure_packages
from workloads import Idle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from innoscope.target.model import Target

CALLS = Way("gdb", calls={"glibc": "malloc_trim(0)"})
THREADS = 200  # so that gdb is busy with attaching for a while
PATIENCE_S = 60
SEED = 20261121
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    ensure_packages(["gdb"])
    with Server("mysql-5.6.24") as server, Idle(server, THREADS):
        yield server
        assert server.running
        assert not left_over(server.pid)


@pytest.fixture
def target(server: Server) -> Target:
    return find_one(pid=server.pid)


@dataclass
class Seen:
    """For how long the server was traced or stopped, from the first to the last time it was seen so."""

    first: float | None = None
    last: float = 0.0

    @property
    def seconds(self) -> float:
        return 0.0 if self.first is None else self.last - self.first


@contextlib.contextmanager
def watched(pid: int) -> Iterator[Seen]:
    """Looks at all threads without pause."""
    seen, over = Seen(), threading.Event()

    def look() -> None:
        while not over.is_set():
            if any(state in "Tt" or who for state, who in watchdog_main.threads(pid)):
                seen.last = time.monotonic()
                seen.first = seen.first or seen.last

    looker = threading.Thread(target=look)
    looker.start()
    try:
        yield seen
    finally:
        over.set()
        looker.join()


def assert_well(server: Server) -> None:
    """Running, untraced, answering, and its first thread takes new clients."""
    assert server.running
    assert not [one for one in watchdog_main.threads(server.pid) if one[0] in "Tt" or one[1]]
    with contextlib.closing(server.connect(read_timeout=15)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT 6 * 7")
        assert cursor.fetchone() == (42,)


@pytest.mark.parametrize("deed", ["killed", "stopped", "hung"])
@pytest.mark.parametrize("moment", ["before-attach", "after-attach", "before-detach", "after-detach"])
def test_gdb_fails_at_a_moment(
    server: Server, target: Target, tmp_path: Path, moment: str, deed: str
) -> None:
    writer = GdbWriter(target, 4.0, gdb=faulty_gdb(tmp_path, moment, deed))
    [step] = writer.prepare(CALLS, ())
    called = moment in ("before-detach", "after-detach")
    with watched(server.pid) as seen:
        if called:
            writer.write(step)
        else:
            with pytest.raises(Refused, match="was not called") as refused:
                writer.write(step)
            assert refused.value.remedy
        assert_well(server)
    assert seen.seconds < WELL_S
    assert writer.last is not None
    assert writer.last.called is called
    assert (writer.last.killed is not None) == (deed != "killed")
    assert writer.last.righted_s < WELL_S


def test_gdb_is_a_child_of_what_is_killed(server: Server, target: Target, tmp_path: Path) -> None:
    writer = GdbWriter(target, gdb=faulty_gdb(tmp_path, "after-attach", "stopped", child=True))
    [step] = writer.prepare(CALLS, ())
    with watched(server.pid) as seen, pytest.raises(Refused, match="held the server"):
        writer.write(step)
    assert_well(server)
    assert seen.seconds < WELL_S


@pytest.mark.timeout(900)
def test_gdb_is_killed_at_random_moments(server: Server, target: Target) -> None:
    """From outside, while it attaches, holds the server and lets go of it."""
    draw = random.Random(SEED)  # noqa: S311
    hit, worst = 0, 0.0
    for _ in range(KILLS):
        writer = GdbWriter(target)
        [step] = writer.prepare(CALLS, ())
        killer = threading.Thread(target=kill_tracer, args=(server.pid, draw.uniform(0, 0.12)))
        with watched(server.pid) as seen:
            killer.start()
            with contextlib.suppress(Refused, ChangeFailed):
                writer.write(step)
            assert_well(server)
            killer.join()
        assert seen.seconds < WELL_S
        assert writer.last is not None
        assert not left_over(server.pid)
        hit += writer.last.status == -signal.SIGKILL
        worst = max(worst, seen.seconds)
    print(f"\n{hit} of {KILLS} killed at work; stopped for {worst * 1000:.0f} ms at most")
    assert hit >= KILLS // 4


def kill_tracer(pid: int, after_s: float) -> None:
    if until(lambda: watchdog_main.tracer(pid) != 0):
        gdb = watchdog_main.tracer(pid)
        time.sleep(after_s)
        if gdb and watchdog_main.tracer(pid) == gdb:
            os.kill(gdb, signal.SIGKILL)


@pytest.mark.parametrize("moment", ["after-attach", "before-detach"])
def test_the_tool_is_killed(server: Server, tmp_path: Path, moment: str) -> None:
    gdb = faulty_gdb(tmp_path, moment, "stopped")
    tool = start_tool(server.pid, gdb)
    try:
        assert until(lambda: watchdog_main.tracer(server.pid) != 0)
        holder = watchdog_main.tracer(server.pid)
        [watchdog] = children(tool.pid)
    finally:
        tool.kill()
        tool.wait()
    began = time.monotonic()
    assert until(lambda: watchdog_main.tracer(server.pid) == 0)
    assert until(lambda: not gone_wrong(server.pid))
    assert time.monotonic() - began < WELL_S
    assert_well(server)
    assert until(lambda: not runs(watchdog) and not runs(holder))


@pytest.mark.timeout(900)
def test_the_tool_is_killed_at_random_moments(server: Server) -> None:
    draw = random.Random(SEED)  # noqa: S311
    began = time.monotonic()
    assert start_tool(server.pid, "gdb").wait(PATIENCE_S) == 0
    whole, hit = time.monotonic() - began, 0
    for _ in range(KILLS):
        tool = start_tool(server.pid, "gdb")
        with watched(server.pid) as seen:
            with contextlib.suppress(subprocess.TimeoutExpired):
                tool.wait(draw.uniform(0, whole))
            hit += tool.poll() is None
            left = children(tool.pid)
            tool.kill()
            tool.wait()
            assert until(lambda left=left: not any(map(runs, left)))  # type: ignore[misc]
        assert seen.seconds < WELL_S
        assert_well(server)
    print(f"\n{hit} of {KILLS} killed at work, within {whole:.2f} s")
    assert hit >= KILLS // 2


@pytest.mark.parametrize("moment", ["before-attach", "after-attach", "before-detach"])
def test_the_watchdog_is_killed(server: Server, target: Target, tmp_path: Path, moment: str) -> None:
    """The kernel kills gdb with it, and the tool puts the server right."""
    gdb = faulty_gdb(tmp_path, moment, "stopped")
    writer = GdbWriter(target, gdb=gdb)
    [step] = writer.prepare(CALLS, ())
    ready: Callable[[], bool] = lambda: watchdog_main.tracer(server.pid) != 0  # noqa: E731
    if moment == "before-attach":
        ready = lambda: any(state(pid) == "T" for dog in dogs() for pid in children(dog))  # noqa: E731
    killer = threading.Thread(target=kill_watchdogs, args=(ready,))
    with watched(server.pid) as seen:
        killer.start()
        with pytest.raises(ChangeFailed, match="watchdog"):
            writer.write(step)
        assert_well(server)
        killer.join()
    assert seen.seconds < WELL_S


def test_no_gdb(target: Target) -> None:
    with pytest.raises(Refused, match="not installed") as refused:
        GdbWriter(target, gdb="/nonexistent/gdb").prepare(CALLS, ())
    assert "install" in str(refused.value.remedy)


def test_a_gdb_that_is_none(server: Server, target: Target) -> None:
    writer = GdbWriter(target, gdb="/usr/bin/false")
    [step] = writer.prepare(CALLS, ())
    with pytest.raises(Refused, match="ended with 1"):
        writer.write(step)
    assert_well(server)


def test_no_call_for_its_allocator(target: Target) -> None:
    with pytest.raises(NotOnThisServer, match="runs on glibc"):
        GdbWriter(target).prepare(Way("gdb", calls={"tcmalloc": "f()"}), ())
    with pytest.raises(Refused, match="no_such_function is not in"):
        GdbWriter(target).prepare(Way("gdb", calls={"glibc": "no_such_function(0)"}), ())


def test_traced_already(server: Server, target: Target) -> None:
    command = ["gdb", "-nx", "-batch", "-p", str(server.pid), "-ex", "shell sleep 600"]
    other = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        assert until(lambda: watchdog_main.tracer(server.pid) == other.pid)
        with pytest.raises(Refused, match=rf"traced already, by {other.pid}"):
            GdbWriter(target).prepare(CALLS, ())
    finally:
        os.killpg(other.pid, signal.SIGKILL)
        other.wait()
        os.kill(server.pid, signal.SIGCONT)
    assert until(lambda: not gone_wrong(server.pid))


def test_stopped(server: Server, target: Target) -> None:
    os.kill(server.pid, signal.SIGSTOP)
    try:
        assert until(lambda: gone_wrong(server.pid))
        with pytest.raises(Refused, match="is stopped") as refused:
            GdbWriter(target).prepare(CALLS, ())
        assert "unstick" in str(refused.value.remedy)
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert until(lambda: not gone_wrong(server.pid))

    writer = GdbWriter(target)  # its first thread is in restart_syscall now
    writer.write(*writer.prepare(CALLS, ()))
    assert_well(server)


def test_another_process_by_now(server: Server, target: Target) -> None:
    writer = GdbWriter(target)
    [step] = writer.prepare(CALLS, ())
    other = GdbWriter(replace(target, start_time=target.start_time + 1))
    with watched(server.pid) as seen:
        for attempt in (lambda: other.prepare(CALLS, ()), lambda: other.write(step)):
            with pytest.raises(NoSuchProcess):
                attempt()
    assert seen.first is None


def test_another_process_when_gdb_has_attached(server: Server, target: Target, tmp_path: Path) -> None:
    """The id was given to another process between our last check and the attach: gdb lets go at once."""
    gdb = tmp_path / "gdb"
    gdb.write_text(
        "#!/bin/sh\n"
        f'INNOSCOPE_CALL=$(printf %s "$INNOSCOPE_CALL" | sed "s/: {target.start_time},/: 1,/")\n'
        'export INNOSCOPE_CALL; exec gdb "$@"\n'
    )
    gdb.chmod(0o755)
    writer = GdbWriter(target, gdb=str(gdb))
    [step] = writer.prepare(CALLS, ())
    with pytest.raises(Refused, match="another process has its id"):
        writer.write(step)
    assert writer.last is not None
    assert (writer.last.called, writer.last.killed, writer.last.status) == (False, None, 0)
    assert_well(server)


def test_the_server_is_killed_meanwhile(tmp_path: Path) -> None:
    with Server("mysql-5.5.9") as server:
        writer = GdbWriter(find_one(pid=server.pid), gdb=faulty_gdb(tmp_path, "after-attach", "stopped"))
        [step] = writer.prepare(CALLS, ())
        killer = threading.Thread(target=kill_when_traced, args=(server,))
        killer.start()
        with pytest.raises(InnoscopeError):
            writer.write(step)
        killer.join()


def kill_when_traced(server: Server) -> None:
    pid = server.pid
    assert until(lambda: watchdog_main.tracer(pid) != 0)
    server.kill()


def kill_watchdogs(ready: Callable[[], bool]) -> None:
    assert until(ready)
    for dog in dogs():
        os.kill(dog, signal.SIGKILL)


def start_tool(pid: int, gdb: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(HERE / "call_main.py"), str(pid), gdb],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def dogs() -> list[int]:
    """Our own watchdogs."""
    return [
        pid for pid in children(os.getpid()) if b"watchdog_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


def children(pid: int) -> list[int]:
    return [
        int(child)
        for thread in Path(f"/proc/{pid}/task").glob("*/children")
        for child in thread.read_text().split()
    ]


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def left_over(server: int) -> list[int]:
    """What was started to call something in this server, gdb's own children too, and is still there."""
    order = f'INNOSCOPE_CALL={{"pid": {server},'.encode()
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if order in environment.read_bytes():
                found.append(int(environment.parent.name))
    return [pid for pid in found if runs(pid)]


def runs(pid: int) -> bool:
    """Whether it is there; one that has ended may wait for init to take note of it."""
    try:
        return state(pid) not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone_wrong(pid: int) -> bool:
    return any(letter in "Tt" or who for letter, who in watchdog_main.threads(pid))


def until(reached: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not reached():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True
