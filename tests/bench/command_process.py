"""Helper process: run one command and print its wall time, CPU time and memory as one line of JSON.

This process is small (``python -I -S``, standard library only), because a command's ru_maxrss includes the
size of the process that forked it. Arguments: output file, error file, maximum seconds, command. The command
is terminated after the maximum time, or if this process's standard input closes; otherwise gdb would keep the
server stopped.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time

_STEP_MS = 4
_PATIENCE_S = 1


def anon_kb(pid: int) -> int:
    """Return the process's memory in KiB, without pages that are mapped from files."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:  # noqa: PTH123 - pathlib needs more memory
            lines = file.read().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith((b"RssAnon:", b"RssShmem:")))


def main() -> None:
    """Run the command and print the result."""
    output, errors, bound, *command = sys.argv[1:]
    out = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    err = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    begun = time.monotonic()
    helper = os.fork()
    if helper == 0:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.execvp(command[0], command)  # noqa: S606
    poller = select.poll()
    ended = os.pidfd_open(helper)
    poller.register(ended, select.POLLIN)
    poller.register(0, select.POLLIN)
    peak, last_word = 0, signal.SIGTERM
    while ended not in (ready := dict(poller.poll(_STEP_MS))):
        peak = max(peak, anon_kb(helper))
        if ready or time.monotonic() - begun > float(bound):
            os.killpg(helper, last_word)
            last_word = signal.SIGKILL
            time.sleep(_PATIENCE_S)
    wall = time.monotonic() - begun
    _, status, used = os.wait4(helper, 0)
    print(
        json.dumps(
            {
                "wall_s": wall,
                "cpu_s": used.ru_utime + used.ru_stime,
                "rss_mb": used.ru_maxrss * 1024 / 1e6,
                "anon_mb": peak * 1024 / 1e6,
                "exit": os.waitstatus_to_exitcode(status),
            }
        )
    )


if __name__ == "__main__":
    main()
