"""Set a toggle or undo a change, and send SIGKILL to this process at a fault point.

Print ``begins`` before the change. Arguments: ``set PID TOGGLE VALUE BACKEND SECONDS FAULT`` or ``undo PID
FAULT``. SECONDS is 0 for no time limit; FAULT is ``-`` for no fault point.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

from innoscope.target.credentials import LoginOptions
from innoscope.target.discover import find_one
from innoscope.toggles import engine

if TYPE_CHECKING:
    from collections.abc import Callable


def _dying_at(point: str) -> Callable[[str], None]:
    def fault(reached: str) -> None:
        if reached == point:
            os.kill(os.getpid(), signal.SIGKILL)

    return fault


def main() -> None:
    what, pid, *rest = sys.argv[1:]
    target, account = find_one(int(pid)), LoginOptions()
    if what == "undo":
        print("begins", flush=True)
        engine.undo(target, None, account=account, who="chaos", fault=_dying_at(rest[0]))
        return
    toggle, value, backend, seconds, point = rest
    plan = engine.plan(target, toggle, value, account=account, backends=[backend])
    limit = float(seconds) or None
    print("begins", flush=True)
    engine.apply(target, plan, who="chaos", seconds=limit, account=account, fault=_dying_at(point))


if __name__ == "__main__":
    main()
