"""Helper process: sample a process's main thread every millisecond, to measure how long it is stopped.

``take`` replies with the stopped milliseconds since the last ``take``.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time

from bench.helper_process import next_command, reply

_STEP_S = 0.001
_NICE = -10  # at normal priority, this process would sample too rarely on two busy cores


def main() -> None:
    """Sample the main thread's state and reply to commands. The command-line argument is the pid."""
    pid = int(sys.argv[1])
    with contextlib.suppress(PermissionError):
        os.nice(_NICE)
    file = os.open(f"/proc/{pid}/task/{pid}/stat", os.O_RDONLY)  # cheap, unlike the process's stat file
    reply("ready")
    stopped = 0.0
    before, was_stopped = time.monotonic(), False
    while (command := next_command(_STEP_S)) is not None:
        state = os.pread(file, 512, 0).rpartition(b") ")[2][:1]
        now = time.monotonic()
        is_stopped = state in b"tT"
        if is_stopped and was_stopped:
            stopped += now - before
        elif is_stopped or was_stopped:
            stopped += (now - before) / 2
        before, was_stopped = now, is_stopped
        if command:
            reply(stopped * 1000)
            stopped = 0.0


if __name__ == "__main__":
    with contextlib.suppress(ProcessLookupError):  # the server has exited
        main()
