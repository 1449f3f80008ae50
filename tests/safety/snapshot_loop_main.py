"""Take snapshots of one process after another, each until it has exited.

Argument: the method. The pids are read from standard input. This process must not be their parent, because
the waitpid calls of a parent and of a tracer would consume each other's events.
"""

from __future__ import annotations

import sys
import time

from innoscope.common.errors import InnoscopeError
from innoscope.sampling.engine import Engine
from innoscope.target.discover import find_one

_BOUND_S = 30


def _snapshots_until_end(pid: int, method: str) -> str:
    engine = Engine(find_one(pid), method=method)
    engine.take_snapshot()
    print("started", flush=True)
    deadline = time.monotonic() + _BOUND_S
    try:
        while time.monotonic() < deadline:
            engine.take_snapshot()
    except InnoscopeError as error:
        return f"{type(error).__name__}: {error}"
    return "still running"


def main() -> None:
    """Print two lines for each pid: ``started`` after the first snapshot, and the final error."""
    for line in sys.stdin:
        print(_snapshots_until_end(int(line), sys.argv[1]), flush=True)


if __name__ == "__main__":
    main()
