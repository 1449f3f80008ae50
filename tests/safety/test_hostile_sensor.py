"""Test that a sensor that takes hostile processes for servers still watches the real server."""

from __future__ import annotations

import subprocess
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from safety.hostile_elf import FILES, FRAMES, compile_program
from safety.sensing import Sensing, of_pid
from safety.test_hostile_crowd import compile_mapping
from scale import count, long
from servers import Keeper, Server
from workloads import RowLock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from innoscope.daemon.protocol.messages import Reply

ANSWER_S = 1.0
SENSOR_BYTES = 256 << 20
SECONDS = count(quick=8, full=20)
_COLLECTORS = ("process", "memory", "probes", "waits")


@contextmanager
def hostile_processes(folder: Path) -> Iterator[dict[str, int]]:
    """Start one process named mysqld for each hostile file and each hostile frame; yield the pids by name."""
    pids = {}
    with Keeper() as keeper:
        for name in (*FILES, *FRAMES):
            home = folder / name
            home.mkdir()
            if name in FILES:
                path = home / f"{name}.so"
                path.write_bytes(FILES[name][0]())
                process = subprocess.Popen([compile_mapping(home), path], cwd=home, stdout=subprocess.PIPE)
                assert process.stdout is not None
                assert process.stdout.readline() == b"ready\n"
            else:
                process = subprocess.Popen([compile_program(home, FRAMES[name], "mysqld")], cwd=home)
            keeper.watch(process.pid)
            pids[name] = process.pid
        yield pids


@long("test_hostile_files.py and test_hostile_memory.py run one real server")
@pytest.mark.timeout(300)
def test_hostile_servers_do_not_disturb_the_real_one(tmp_path: Path) -> None:
    took: list[float] = []
    with ExitStack() as stack:
        server = stack.enter_context(Server("mysql-5.6.24"))
        stack.enter_context(RowLock(server, 4))
        pids = stack.enter_context(hostile_processes(tmp_path))
        watched = [text for pid in pids.values() for text in ("--only", pid)]
        sensing = stack.enter_context(Sensing(*watched, only=[server]))

        def collect() -> Reply:
            began = time.monotonic()
            reply = sensing.client.collect()
            took.append(time.monotonic() - began)
            return reply

        def missing(reply: Reply) -> dict[str, str | None]:
            real = of_pid(reply, server.pid)
            outcomes = {one.collector: one for one in real.outcomes} if real else {}
            return {
                name: outcomes[name].reason if name in outcomes else "absent"
                for name in _COLLECTORS
                if name not in outcomes or not outcomes[name].success
            }

        deadline = time.monotonic() + 60
        while missing(reply := collect()) or len(reply.servers) <= len(pids):
            assert time.monotonic() < deadline, missing(reply)
            time.sleep(0.5)
        took.clear()
        for _ in range(SECONDS):
            reply = collect()
            assert missing(reply) == {}
            time.sleep(1)
        for name, pid in pids.items():
            assert of_pid(reply, pid) is not None, name
        log = sensing.log
    assert max(took) < ANSWER_S
    assert reply.rss_bytes < SENSOR_BYTES
    assert "Traceback" not in log
