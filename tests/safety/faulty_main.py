"""``faulty_main.py sensor …`` or ``agent …``: the real program, in which SIGUSR1 hurts a thread.

It obeys the file ``INNOSCOPE_FAULTS``: ``kill NAME`` raises SystemExit in the threads of that name, wherever
they are; ``hang NAME`` keeps them from going on for good; ``list`` does nothing. Then it writes the names
and numbers of all threads to the same path with ``.threads`` at its end.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from innoscope.cli.main import run

if TYPE_CHECKING:
    from types import FrameType

_ORDERS = Path(os.environ["INNOSCOPE_FAULTS"])


class Hang(BaseException):
    """Raised in a thread, it never comes out: to make it waits for ever."""

    def __init__(self) -> None:
        threading.Event().wait()


def obey(_number: int, _frame: FrameType | None) -> None:
    """Do what the file says."""
    what, _, name = _ORDERS.read_text().partition(" ")
    there = [thread for thread in threading.enumerate() if thread.ident is not None]
    for thread in there:
        if thread.name == name:
            fault = SystemExit if what == "kill" else Hang
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident or 0), ctypes.py_object(fault)
            )
    answer = _ORDERS.with_suffix(".answer")
    answer.write_text("".join(f"{thread.name} {thread.native_id}\n" for thread in there))
    answer.replace(_ORDERS.with_suffix(".threads"))


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, obey)
    run(sys.argv[1:])
