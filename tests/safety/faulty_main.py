"""``faulty_main.py sensor …`` or ``agent …``: the real program, in which SIGUSR1 injects a fault.

The signal handler reads a command from the file named by ``INNOSCOPE_FAULTS``. ``kill NAME`` raises
SystemExit in the threads of that name, and ``list`` does nothing. The handler then writes the names and ids
of all threads to the same path with the suffix ``.threads``.
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

_COMMAND = Path(os.environ["INNOSCOPE_FAULTS"])


def execute_command(_number: int, _frame: FrameType | None) -> None:
    """Execute the command in the file and write the list of threads."""
    what, _, name = _COMMAND.read_text().partition(" ")
    threads = [thread for thread in threading.enumerate() if thread.ident is not None]
    for thread in threads:
        if what == "kill" and thread.name == name:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit)
            )
    partial = _COMMAND.with_suffix(".partial")
    partial.write_text("".join(f"{thread.name} {thread.native_id}\n" for thread in threads))
    partial.replace(_COMMAND.with_suffix(".threads"))


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, execute_command)
    run(sys.argv[1:])
