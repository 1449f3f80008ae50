"""Test how much CPU time it takes to read the counters from a server's memory."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING

import pytest

from innoscope.common import slowness
from innoscope.memory.reader import MemoryReader
from innoscope.target.discover import find_one
from scale import few
from servers import ADDED, NAMES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from servers import Server

READS = 500
#: CPU time of ``slowness.reference_work`` on a current server, in seconds.
_CURRENT_S = 0.0008
SERVERS = few(
    (*NAMES, *ADDED), "mysql-5.6.24", "mysql-8.0.31", reason="one server with debug information, one without"
)


@pytest.mark.parametrize("name", SERVERS)
def test_read_takes_less_than_a_millisecond(
    name: str, server: Callable[[str], Server], tmp_path: Path
) -> None:
    """Check the CPU time on a current server. It is derived from that of other work at the same moment.

    The speed of a virtual CPU changes by half within a second, so each read is compared with the work that
    follows it.
    """
    reader = MemoryReader(find_one(server(name).pid), cache=tmp_path)
    reader.read()
    ratios = []
    for _ in range(READS):
        began = time.thread_time()
        reader.read()
        took = time.thread_time() - began
        ratios.append(took / slowness.reference_work())
    assert median(ratios) * _CURRENT_S < 1e-3
