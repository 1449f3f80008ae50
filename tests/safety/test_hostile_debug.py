"""Reading endless debug information stops at a limit, so that other servers are not delayed."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Final

import pytest

from innoscope.common.cache import Cache
from innoscope.common.errors import NotRead
from innoscope.memory import layout
from innoscope.memory.layout import Debug
from innoscope.target.discover import find_one
from safety.hostile_elf import branching_types
from safety.hostile_main import target_of
from safety.test_hostile_crowd import compile_mapping, running
from scale import long
from servers import Server

_NOBODY: Final = 65534


def hostile_program(folder: Path) -> Path:
    """Compile a program with endless debug information; its owner is the user nobody."""
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
