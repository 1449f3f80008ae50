"""Helper process: run ``innoscope diagnose`` on one server, once for each line ``run`` on standard input.

Arguments: pid, seconds. The helper prints one line of JSON at the end of each run.
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

from bench.helper_process import next_command, reply

_INNOSCOPE = Path(sys.executable).with_name("innoscope")
_ENDS = (0, 18)  # exit codes: no findings, findings
#: Let Python cache bytecode, so that the runs load compiled modules, as an installed package does.
_ENVIRONMENT = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def run(pid: str, seconds: str) -> dict[str, Any]:
    """Run the command; return its duration, CPU time, snapshots, findings and missing sources.

    Raise RuntimeError if the command fails.
    """
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
        "snapshots": record["looks"],
        "found": sorted({one["name"] for one in record["findings"]}),
        "missing": sorted({one["source"] for one in record["cannot_tell"]}),
    }


def _cpu_seconds() -> float:
    """Return the CPU time of all completed runs and their child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Execute commands until standard input closes."""
    pid, seconds = sys.argv[1:]
    reply("ready")
    while next_command(None):
        reply(run(pid, seconds))


if __name__ == "__main__":
    main()
