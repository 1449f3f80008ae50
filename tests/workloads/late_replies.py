"""Make processes reply late, as a slow network or a slow host does."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from servers import Server

#: Seconds for which each stop lasts.
_STOPPED_S: Final = 1.5
#: Seconds for which the processes run between two stops.
_RUNNING_S: Final = 0.01


@contextmanager
def late_replies(servers: Sequence[Server]) -> Iterator[None]:
    """While the block runs, repeatedly stop the servers' processes for 1.5 s and let them run for 10 ms."""
    ended = threading.Event()
    pids = [server.pid for server in servers]
    thread = threading.Thread(target=_stop_often, args=(pids, ended))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _stop_often(pids: Sequence[int], ended: threading.Event) -> None:
    try:
        while not ended.wait(_RUNNING_S):
            _send(pids, signal.SIGSTOP)
            ended.wait(_STOPPED_S)
            _send(pids, signal.SIGCONT)
    finally:
        _send(pids, signal.SIGCONT)


def _send(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)
