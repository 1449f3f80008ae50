"""Test that reading endless debug information stops at a limit, and that servers' owners take turns."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from innoscope.common.cache import Cache
from innoscope.common.errors import NotRead
from innoscope.common.supervision import Supervisor
from innoscope.common.workers import Workers
from innoscope.daemon.sensor.watch import WatchedServer
from innoscope.memory import layout
from innoscope.memory.layout import Debug
from innoscope.memory.reader import MemoryReader
from innoscope.metrics.collectors.memory import MemoryCollector
from innoscope.metrics.collectors.snapshot_budget import SnapshotBudget
from innoscope.sampling.profile_history import ProfileHistory
from innoscope.target.container import tenant_or_user
from innoscope.target.discover import find_one
from innoscope.target.proc import ProcFs
from safety.hostile_elf import branching_types
from safety.hostile_main import target_of
from safety.strangers import UID
from safety.test_hostile_crowd import compile_mapping, running
from scale import long
from servers import Server
from waiting import until

if TYPE_CHECKING:
    from innoscope.common.samples import Sample
    from innoscope.target.model import Target

_NOBODY: Final = 65534
_SLOW_SERVERS: Final = 6


def hostile_program(folder: Path) -> Path:
    """Compile a program with endless debug information into a file owned by the user nobody."""
    program = compile_mapping(folder)
    add: list[str] = []
    for section in branching_types():
        file = folder / section.name.decode()
        file.write_bytes(section.data)
        add += ["--add-section", f"{section.name.decode()}={file}"]
    subprocess.run(["objcopy", *add, program], check=True)
    shutil.chown(program, _NOBODY)
    return program


@long("test_hostile_files.py has such files in make test")
@pytest.mark.timeout(240)
def test_slow_debug_information_delays_no_other_server(tmp_path: Path) -> None:
    errors: list[NotRead] = []
    no_cache = Cache("layouts", 4, Path("/proc/none"))
    with running(hostile_program(tmp_path)) as pid, Server("mysql-5.6.24") as server:
        hostile, real = target_of(pid), find_one(server.pid)

        def learn_hostile() -> None:
            with pytest.raises(NotRead) as caught:
                layout.learn(hostile, ["log_sys"], ["log_sys.lsn"], Debug(), no_cache)
            errors.append(caught.value)

        thread = threading.Thread(target=learn_hostile)
        thread.start()
        time.sleep(1)
        known = layout.learn(real, ["log_sys"], ["log_sys.lsn"], Debug(), no_cache)
        assert thread.is_alive()
        assert known.members["log_sys.lsn"].size == 8
        thread.join()
        [error] = errors
        assert str(tmp_path / "mysqld") in error.what
        assert "exceeds its limit of CPU time, not read; retried after 60 s" in error.what
        began = time.monotonic()
        learn_hostile()
        assert time.monotonic() - began < 1
        assert errors[1].what == error.what


class Recording(MemoryCollector):
    """The sensor's memory collector, which also adds the server's pid to ``began`` at each run."""

    def __init__(self, target: Target, began: list[int]) -> None:
        super().__init__(target, reader=MemoryReader(target, cache=Path("/proc/none")))
        self._pid, self._began = target.pid, began

    def collect(self) -> list[Sample]:
        self._began.append(self._pid)
        return super().collect()


@long("unit/test_runner.py has slow collectors of two owners in make test")
@pytest.mark.timeout(240)
def test_slow_servers_of_one_owner_take_turns_with_a_real_one(folder: Path) -> None:
    """Let the memory of six hostile servers be read first, by one thread and its replacements."""
    began: list[int] = []
    workers, slow = Workers(sizes={"memory": 1}), []
    program = hostile_program(folder)
    with ExitStack() as stack:
        server = stack.enter_context(Server("mysql-5.6.24"))
        for number in range(_SLOW_SERVERS):
            copy = folder / str(number) / "mysqld"
            copy.parent.mkdir()
            shutil.copy(program, copy)
            shutil.chown(copy, _NOBODY)
            slow.append(stack.enter_context(running(copy, uid=UID)))
        Supervisor().start("workers", workers.run, 60.0)
        stack.callback(workers.close, 90.0)

        def watch(target: Target) -> WatchedServer:
            made = WatchedServer(
                target,
                ProfileHistory(),
                [partial(Recording, began=began)],
                workers=workers,
                tenant=tenant_or_user(ProcFs(), target.pid),
                budget=SnapshotBudget(),
                interval_s=1.0,
            )
            stack.callback(made.close)
            made.start()
            return made

        for pid in slow:
            watch(target_of(pid))
        real = watch(find_one(server.pid))
        until(partial(_collected, real), lambda: began, within_s=60)
        assert began.index(server.pid) <= 2, "it waited for more than one turn"
        assert set(slow) - set(began), "the others were faster than expected"


def _collected(watched: WatchedServer) -> bool:
    """Return whether the memory collector has samples; start the next run otherwise."""
    found = next(one for one in watched.outcomes() if one.collector == MemoryCollector.name)
    if not found.samples:
        watched.start()
    return bool(found.samples)
