"""Helper process: ``innoscope diagnose`` on one server, over and over.

Arguments: pid, seconds of each run. Orders on its input: ``on`` and ``off``, which answers with what was done
since, when the run that is under way has ended. Each gets one line of JSON.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from bench.children import answer, told

_INNOSCOPE = Path(sys.executable).with_name("innoscope")
_ENDS = (0, 18)  # nothing wrong, something found


class Runs:
    """One run after the other, until ``end``."""

    def __init__(self, pid: str, seconds: str) -> None:
        self._command = [
            str(_INNOSCOPE), "diagnose", "--pid", pid, "-u", "root", "--seconds", seconds, "--json",
        ]  # fmt: skip
        self._ended = threading.Event()
        self._records: list[dict[str, Any]] = []
        self._failure: str | None = None
        self._began, self._ran = time.monotonic(), _cpu_seconds()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def end(self) -> dict[str, Any]:
        """How many runs, their CPU time, what they found and could not tell. Raises RuntimeError."""
        self._ended.set()
        self._thread.join()
        if self._failure is not None:
            raise RuntimeError(self._failure)
        return {
            "seconds": time.monotonic() - self._began,
            "cpu_s": _cpu_seconds() - self._ran,
            "runs": len(self._records),
            "looks": sum(record["looks"] for record in self._records),
            "found": sorted({one["name"] for record in self._records for one in record["findings"]}),
            "untold": sorted({one["source"] for record in self._records for one in record["cannot_tell"]}),
        }

    def _work(self) -> None:
        while not self._ended.is_set():
            done = subprocess.run(self._command, capture_output=True, text=True, check=False)
            if done.returncode not in _ENDS:
                self._failure = done.stderr
                return
            self._records.append(json.loads(done.stdout))


def _cpu_seconds() -> float:
    """Of all runs that have ended, with the children that they had."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Rest between ``off`` and ``on``."""
    pid, seconds = sys.argv[1:]
    answer("ready")
    while told(None):
        runs = Runs(pid, seconds)
        answer("on")
        told(None)
        answer(runs.end())


if __name__ == "__main__":
    main()
