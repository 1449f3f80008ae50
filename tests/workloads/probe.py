"""Measure the times between replies to a client, which queries continuously in a separate process."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from servers import Keeper
from workloads.base import WorkloadError

if TYPE_CHECKING:
    from servers import Server

_SCRIPT = Path(__file__).with_name("probe_main.py")


@dataclass(frozen=True, slots=True)
class Gaps:
    """The times between replies, in microseconds, from one ``take()`` to the next.

    ``histogram`` maps the lower edge of a bucket (an eighth of its octave wide) to the number of gaps in it.
    """

    seconds: float
    count: int
    longest_us: int
    longest_at: float  #: seconds since the epoch, at the end of that gap
    histogram: dict[int, int]

    def percentile(self, share: float) -> int:
        """Return the quantile ``share`` of the gaps in microseconds, with the histogram's resolution."""
        left = share * self.count
        for edge, count in sorted(self.histogram.items()):
            left -= count
            if left <= 0:
                return edge
        return self.longest_us


class LatencyProbe:
    """Context manager around one client that sends ``DO 1`` and waits for the reply, in a loop.

    With ``realtime`` (SCHED_FIFO), the client itself never waits for a CPU, as if it ran on another host. A
    nice value is not sufficient under EEVDF. The client exits on its own after ``bound`` seconds.
    """

    def __init__(self, server: Server, *, realtime: bool = False, bound: int = 3600) -> None:
        self._keeper = Keeper()
        self._process = subprocess.Popen(
            [sys.executable, str(_SCRIPT), str(server.socket), str(int(realtime)), str(bound)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._keeper.watch(self._process.pid)

    def __enter__(self) -> LatencyProbe:
        try:
            self._line()  # wait for the line that the client prints once it has started
        except WorkloadError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._keeper.close()

    def take(self) -> Gaps:
        """Return the gaps since the last call. Wait for the end of the current gap, which is included."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("take\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise WorkloadError("the probing client has exited") from error
        reply = json.loads(self._line())
        histogram = {int(edge): count for edge, count in reply.pop("histogram").items()}
        return Gaps(histogram=histogram, **reply)

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise WorkloadError(f"the probing client exited with {self._process.wait()}")
        return line
