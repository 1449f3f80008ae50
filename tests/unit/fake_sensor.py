"""A fake sensor and its replies, for tests of the agent."""

from __future__ import annotations

import os
import threading
from typing import Any

from innoscope.common.samples import Outcome, Sample
from innoscope.daemon.agent import config
from innoscope.daemon.protocol.messages import Reply, ServerReply
from innoscope.target.proc import ProcFs
from unit.snapshots import target

#: A configuration without SQL, and with a sensor timeout that is sufficient on a busy host.
QUIET = config.Config(sql=config.Sql(enabled=False), sensor=config.SensorConnection(timeout_seconds=60.0))
#: This process, described as a running server.
ALIVE = target(
    pid=os.getpid(), start_time=ProcFs().stat(os.getpid()).start_time, socket="/run/a.sock", port=None
)


def reply(*samples: Sample, pid: int = 7, server: Any = ALIVE, reason: str | None = None) -> Reply:
    outcome = Outcome("waits", reason is None, 0.1, samples, reason)
    return Reply("boot", pid, 1.5, 4096, "0.1.0", (ServerReply("3306", server, (outcome,)),), 0.0)


class Sensor:
    """A fake sensor that waits until ``released`` is set, and then returns or raises the next reply."""

    def __init__(self, *replies: Reply | Exception) -> None:
        self.replies = list(replies)
        self.released = threading.Event()
        self.released.set()

    def collect(self, _timeout: float) -> Reply:
        self.released.wait()
        answer = self.replies.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Clock:
    """A clock that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now
