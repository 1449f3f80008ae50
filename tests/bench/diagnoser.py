"""Helper process: ``innoscope diagnose`` on one server, once for each ``run`` on its input.

Arguments: pid, seconds to look. Each run gets one line of JSON when it has ended.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.children import answer, told

_INNOSCOPE = Path(sys.executable).with_name("innoscope")
_ENDS = (0, 18)  # nothing wrong, something found
#: As installed: pip leaves bytecode, and what runs from a tree makes its own at the first run.
_ENVIRONMENT = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def run(pid: str, seconds: str) -> dict[str, Any]:
    """How long it took, its CPU time, what it found and could not tell. Raises RuntimeError."""
    command = [
        str(_INNOSCOPE), "diagnose", "--pid", pid, "-u", "root", "--seconds", seconds, "--json",
    ]  # fmt: skip
    began, ran = time.monotonic(), _cpu_seconds()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=_ENVIRONMENT)
    if done.returncode not in _ENDS:
        raise RuntimeError(done.stderr)
    record = json.loads(done.stdout)
    return {
        "seconds": time.monotonic() - began,
        "cpu_s": _cpu_seconds() - ran,
        "looks": record["looks"],
        "found": sorted({one["name"] for one in record["findings"]}),
        "untold": sorted({one["source"] for one in record["cannot_tell"]}),
    }


def _cpu_seconds() -> float:
    """Of all runs that have ended, with the children that they had."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Until the input ends."""
    pid, seconds = sys.argv[1:]
    answer("ready")
    while told(None):
        answer(run(pid, seconds))


if __name__ == "__main__":
    main()
