"""Looks at one process after the other, without pause, until each ends.

Argument: method; the pids come on standard input. Not the parent of what it looks at: a parent's wait and a
tracer's wait would take each other's news.
"""

from __future__ import annotations

import sys
import time

from innoscope.common.errors import InnoscopeError
from innoscope.sampling.engine import Engine
from innoscope.target.discover import find_one

_BOUND_S = 30


def _look_to_the_end(pid: int, method: str) -> str:
    engine = Engine(find_one(pid), method=method)
    engine.look()
    print("looking", flush=True)
    deadline = time.monotonic() + _BOUND_S
    try:
        while time.monotonic() < deadline:
            engine.look()
    except InnoscopeError as error:
        return f"{type(error).__name__}: {error}"
    return "no end seen"


def main() -> None:
    """Two lines for each pid: when it is being looked at, and what came in the end."""
    for line in sys.stdin:
        print(_look_to_the_end(int(line), sys.argv[1]), flush=True)


if __name__ == "__main__":
    main()
