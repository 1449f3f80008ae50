"""Profile a server by its pid and a wrong start time, as if the pid had been reused; print the sample count.

Arguments: pid, ticks to add to the start time.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from innoscope._native import OnCpu, Samples
from innoscope.target.discover import find_one

#: CPU seconds that the server uses during the profile.
_CPU_S = 0.3


def main() -> None:
    """Profile the server at 999 Hz until it has used ``_CPU_S``."""
    target, later = find_one(int(sys.argv[1])), int(sys.argv[2])
    program = OnCpu(target.pid, target.start_time + later, 1_001_001)
    samples = Samples(target.pid, program.ring)
    program.begin()
    ends = cpu_s(target.pid) + _CPU_S
    while cpu_s(target.pid) < ends:
        time.sleep(0.02)
    program.end()
    print(samples.read())


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
