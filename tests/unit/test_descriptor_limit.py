"""The method procfs raises a low soft limit on descriptors, so that it can keep all threads' files open."""

from __future__ import annotations

import subprocess
import sys

import pytest

_THREADS = 200
#: A script that takes two snapshots of its own threads. It prints the soft limit, the number of threads, and
#: the number of open files in /proc/PID/task.
_SCRIPT = f"""
import os, resource, sys, threading
from innoscope._native import Process

soft, hard = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
ended = threading.Event()
threads = [threading.Thread(target=ended.wait) for _ in range({_THREADS})]
for thread in threads:
    thread.start()
try:
    process = Process(os.getpid(), method="procfs")
    for _ in range(2):
        threads_seen = len(process.take_snapshot().threads)
finally:
    ended.set()
links = (os.path.realpath(f"/proc/self/fd/{{name}}") for name in os.listdir("/proc/self/fd"))
opened = sum("/task/" in link for link in links)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], threads_seen, opened)
"""


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "at_least_open", "at_most_open"),
    [
        pytest.param(256, 4096, 4096, 2 * _THREADS, 4096 // 2, id="raised to the hard limit"),
        pytest.param(256, 256, 256, 2, 256 // 2, id="the hard limit is low too"),
    ],
)
def test_the_soft_limit_is_raised(
    soft: int, hard: int, raised: int, at_least_open: int, at_most_open: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(soft), str(hard)], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    limit, threads, opened = map(int, done.stdout.split())
    assert limit == raised
    assert threads > _THREADS
    assert at_least_open <= opened <= at_most_open
