"""How long a client had to wait: it asks without pause, in a process of its own, apart from our work."""

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
    """The times between answers, in microseconds, from one ``take()`` to the next.

    ``histogram`` maps the lower edge of a bucket (an eighth of its octave wide) to how many there were.
    """

    seconds: float
    count: int
    longest_us: int
    longest_at: float  #: seconds since the epoch, at the end of that gap
    histogram: dict[int, int]

    def percentile(self, share: float) -> int:
        """The gap that this share (0 to 1) of all gaps does not exceed, to an eighth."""
        left = share * self.count
        for edge, count in sorted(self.histogram.items()):
            left -= count
            if left <= 0:
                return edge
        return self.longest_us


class LatencyProbe:
    """A context manager around one client that sends ``DO 1``, waits for the answer, and sends the next.

    With ``realtime`` (SCHED_FIFO) the client itself never waits for a CPU, as if it ran on another host: what
    it waits for is the server. A nice value will not do: EEVDF charges a heavy task's debt several times over.
    It ends by itself after ``bound`` seconds.
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
            self._line()  # it says when it has begun
        except WorkloadError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._keeper.close()

    def take(self) -> Gaps:
        """The gaps since the last call, with the one under way; it waits for its end. The client goes on."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("take\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise WorkloadError("the probing client has ended") from error
        answer = json.loads(self._line())
        histogram = {int(edge): count for edge, count in answer.pop("histogram").items()}
        return Gaps(histogram=histogram, **answer)

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise WorkloadError(f"the probing client ended with {self._process.wait()}")
        return line
