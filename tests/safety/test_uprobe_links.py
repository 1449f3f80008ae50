"""Test that uprobes count hits, and that they are detached when their owner exits.

This is tested with BPF links and, as on older kernels, with perf events.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from safety.leftovers import breakpoints, orphans, probed
from servers import Server
from waiting import until
from workloads import Fsync

if TYPE_CHECKING:
    from collections.abc import Iterator

#: A script that attaches probes to a server, prints their kind, and prints the counts for each input line.
_OWNER = """
import sys
from pathlib import Path
from innoscope.probes.attachment import Attachment
from innoscope.target.discover import find_one

attachment = Attachment(find_one(int(sys.argv[1])), frozenset({"redo"}))
attachment.attach()
kinds = {str(one.readlink()) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()}
print(*("links" for _ in kinds & {"anon_inode:bpf_link"}),
      *("events" for _ in kinds & {"anon_inode:[perf_event]"}), flush=True)
for line in sys.stdin:
    before = attachment.read().hits
    print("reading", flush=True)
    sys.stdin.readline()
    print(sum(attachment.read().hits) - sum(before), flush=True)
attachment.close()
"""


class _Owner:
    def __init__(self, server: Server, means: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _OWNER, str(server.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "INNOSCOPE_UPROBES": means},
        )
        self.means = self.line()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def request(self) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.line()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("mysql-5.6.24") as server:
        yield server


@pytest.fixture(params=["links", "events"])
def owner(request: pytest.FixtureRequest, server: Server) -> Iterator[_Owner]:
    owner = _Owner(server, request.param)
    assert owner.means == request.param
    yield owner
    owner.process.kill()
    owner.process.wait()


def test_probes_count_all_threads_and_are_detached(owner: _Owner, server: Server) -> None:
    assert probed(server.pid)
    with Fsync(server, 4) as load:
        owner.request()
        before = load.throughput()
        until(lambda: load.throughput() >= before + 200)
        done = load.throughput() - before  # before the count, because the load continues
        counted = int(owner.request())
    assert done >= 200
    assert counted > 0.8 * done  # one log write per commit; counting a single thread would give a quarter

    assert owner.process.stdin is not None
    owner.process.stdin.close()
    assert owner.process.wait(30) == 0
    assert breakpoints(server.pid) == probed(server.pid) == set()
    assert orphans() == set()


def test_probes_end_with_their_killed_owner(owner: _Owner, server: Server) -> None:
    owner.process.send_signal(signal.SIGKILL)
    owner.process.wait(30)
    assert orphans() == set()
    assert breakpoints(server.pid) == probed(server.pid) == set()
    server.connect().close()
