"""The process behind ``safety.watcher``: standard library only, runs until its standard input closes."""

from __future__ import annotations

import json
import os
import select
import sys
import time

#: Samples of the main thread between two rounds over all threads.
_DENSE = 200


def _sample(path: str) -> tuple[bool, bool] | None:
    """(stopped, traced) from a status file; None when the thread has ended."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            text = os.read(descriptor, 4096)
        finally:
            os.close(descriptor)
    except OSError:
        return None
    return b"\nState:\tT" in text or b"\nState:\tt" in text, b"\nTracerPid:\t0\n" not in text


def main() -> None:
    """Argument: the pid."""
    base = f"/proc/{sys.argv[1]}"
    counts = {"main_samples": 0, "rounds": 0, "thread_samples": 0, "stopped": 0, "traced": 0}

    def count(kind: str, path: str) -> None:
        found = _sample(path)
        if found is not None:
            counts[kind] += 1
            counts["stopped"] += found[0]
            counts["traced"] += found[1]

    print("ready", flush=True)
    began = time.monotonic()
    while not select.select([sys.stdin], [], [], 0)[0]:
        for thread in os.scandir(f"{base}/task"):
            count("thread_samples", f"{thread.path}/status")
        counts["rounds"] += 1
        for _ in range(_DENSE):
            count("main_samples", f"{base}/status")
            if select.select([sys.stdin], [], [], 0.0005)[0]:
                break
    print(json.dumps({**counts, "seconds": time.monotonic() - began}))


if __name__ == "__main__":
    main()
