"""Helper process: profiles of one server, symbols read once, that come and go.

Arguments: pid, ``on-cpu`` or ``off-cpu``, frequency. Orders on its input: ``on`` and ``off``, which answers
with what was taken since. Each gets one line of JSON, when it is done.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from bench.children import answer, told
from innoscope.sampling.profile.offcpu import OffCpuProfiler
from innoscope.sampling.profile.oncpu import OnCpuProfiler
from innoscope.sampling.profile.run import POLL_S
from innoscope.target.discover import find_one

if TYPE_CHECKING:
    from innoscope.sampling.profile.run import Profiler


def _profiler(pid: str, kind: str, frequency: str) -> Profiler:
    target = find_one(int(pid))
    return OffCpuProfiler(target) if kind == "off-cpu" else OnCpuProfiler(target, float(frequency))


def _until_off(profiler: Profiler) -> dict[str, float]:
    """One profile. Naming at the end costs the server nothing, so the CPU time is told without."""
    profiler.begin()
    answer("on")
    began, ran = time.monotonic(), time.process_time()
    while not told(POLL_S):
        profiler.poll()
    seconds, ran = time.monotonic() - began, time.process_time() - ran
    profile = profiler.finish()
    return {
        "seconds": seconds,
        "cpu_s": ran,
        "records": profile.records,
        "bytes": profile.bytes,
        "lost": profile.lost,
    }


def main() -> None:
    """A new profiler for each profile, made while it is off."""
    profiler = _profiler(*sys.argv[1:])
    answer("ready")
    while told(None):
        answer(_until_off(profiler))
        profiler = _profiler(*sys.argv[1:])


if __name__ == "__main__":
    main()
