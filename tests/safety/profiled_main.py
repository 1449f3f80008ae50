"""Profile a server with a wrong start time, as if its pid had been reused, and print the number of samples.

Arguments: pid, ticks to add to the start time.
"""

from __future__ import annotations

import sys
import time

from innoscope._native import OnCpu, Samples
from innoscope.target.discover import find_one


def main() -> None:
    """Profile the server for a second at 999 Hz."""
    target, later = find_one(int(sys.argv[1])), int(sys.argv[2])
    program = OnCpu(target.pid, target.start_time + later, 1_001_001)
    samples = Samples(target.pid, program.ring)
    program.begin()
    time.sleep(1)
    program.end()
    print(samples.read())


if __name__ == "__main__":
    main()
