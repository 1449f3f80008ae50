"""Extend time limits on slow hosts, such as emulated machines, and for many servers.

The factor for the host is the CPU time of a fixed amount of work, divided by the longest time that is not
slow (``_ORDINARY_S``). The load of the host hardly affects the factor.
"""

from __future__ import annotations

import time
from functools import cache
from typing import Final

#: CPU time of ``reference_work``, in seconds, above which a host counts as slow. A current server takes
#: 0.0008 s, and a virtual machine with an emulated CPU (QEMU) 10 to 30 times as long.
_ORDINARY_S: Final = 0.0025
_STEPS: Final = 20_000
#: Number of measurements. Only the fastest one is used.
_ROUNDS: Final = 5
_MAX_FACTOR: Final = 20.0
#: Number of servers beyond which time limits for all servers together grow. With 100 servers, the sensor's
#: reply took 0.8 to 1.5 s on a host half as fast as a current one.
_ORDINARY_SERVERS: Final = 25


def scaled(seconds: float) -> float:
    """Return a time limit for this host; ``seconds`` is the limit on an ordinary host."""
    return seconds * factor()


@cache
def factor() -> float:
    """Return the factor for this host, from 1 to 20. It is measured once per process."""
    return bounded(min(reference_work() for _ in range(_ROUNDS)))


def crowding(servers: int) -> float:
    """Return the factor by which this number of servers extends the limits for all of them: at least 1."""
    return max(1.0, servers / _ORDINARY_SERVERS)


def bounded(cpu_seconds: float) -> float:
    """Return the factor for a host on which the work takes ``cpu_seconds``."""
    return max(1.0, min(_MAX_FACTOR, cpu_seconds / _ORDINARY_S))


def reference_work() -> float:
    """Do a fixed amount of work, and return the CPU time that it took, in seconds."""
    began = time.thread_time()
    total = 0
    for number in range(_STEPS):
        total += number * number % 7
    return time.thread_time() - began
