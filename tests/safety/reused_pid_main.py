"""Take a snapshot of a process, and another after a different process has taken over its pid.

This script must run in a separate pid namespace. Arguments: directory for a ``mysqld``, method. It prints the
pids and the result of each snapshot as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from innoscope.common.errors import NoSuchProcess
from innoscope.sampling.engine import Engine
from innoscope.target.discover import find_one
from safety.pretender import Pretender

_TRIES = 20


def of_the_same_pid(first: Pretender) -> subprocess.Popen[bytes]:
    """Start a process with the pid of an exited one. Retry if another process got that pid."""
    for _ in range(_TRIES):
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(first.pid - 1))
        second = subprocess.Popen([first.executable, "60"])
        if second.pid == first.pid:
            break
        second.kill()
        second.wait()
    return second


def main() -> None:
    folder, method = Path(sys.argv[1]), sys.argv[2]
    with Pretender(folder) as first:
        engine = Engine(find_one(first.pid), method=method)
        before = len(engine.take_snapshot().threads)
        first.kill()
        second = of_the_same_pid(first)
        try:
            after = f"{len(engine.take_snapshot().threads)} threads"
        except NoSuchProcess:
            after = "NoSuchProcess"
        second.kill()
        second.wait()
    print(json.dumps({"pids": [first.pid, second.pid], "before": before, "after": after}))


if __name__ == "__main__":
    main()
