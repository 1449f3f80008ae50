"""An independent count, by bpftrace: what happened between entering and leaving."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import Self

from servers import Keeper, ensure_packages

#: tracefs is mounted for bpftrace alone: the machine is as before when it ends.
_MOUNTED = 'mount -t tracefs tracefs /sys/kernel/tracing && exec bpftrace -B line -f json -e "$1"'
_END_S = 60


class Independent:
    """``probes`` are bpftrace's, with a filter; ``count`` is there after the end."""

    def __init__(self, *probes: str) -> None:
        ensure_packages(["bpftrace"])
        counts = "\n".join(f"{probe} {{ @n = count(); }}" for probe in probes)
        self._program = counts + '\nBEGIN { printf("ready\\n"); }'
        self.count = 0

    def __enter__(self) -> Self:
        self._keeper = Keeper()
        self._process = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", _MOUNTED, "sh", self._program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._keeper.watch(self._process.pid)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if "ready" in line:
                return self
        raise AssertionError(f"bpftrace did not start: {self._process.communicate()[1]}")

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGINT)
        output, _errors = self._process.communicate(timeout=_END_S)
        self._keeper.close()
        for line in output.splitlines():
            data = json.loads(line).get("data") if line.startswith("{") else None
            if isinstance(data, dict) and "@n" in data:
                self.count = int(data["@n"])
