"""Helper process: start and stop profiles of one server.

Arguments: pid, ``on-cpu`` or ``off-cpu``, frequency. Commands on its input: ``on`` starts a profile; ``off``
ends the profile and returns its size and cost. Each reply is one line of JSON.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from bench.helper_process import next_command, reply
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
    """Take a profile until the command ``off``, and return its size and cost.

    The CPU time excludes the symbolization at the end, which does not affect the server.
    """
    profiler.begin()
    reply("on")
    began, ran = time.monotonic(), time.process_time()
    while not next_command(POLL_S):
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
    """Execute commands; load the next profiler while no profile is being taken."""
    profiler = _profiler(*sys.argv[1:])
    reply("ready")
    while next_command(None):
        reply(_until_off(profiler))
        profiler = _profiler(*sys.argv[1:])


if __name__ == "__main__":
    main()
