"""Run bpftrace during a block of code, and read its maps at the end."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import suppress
from typing import Any, Final, Self

from servers import Keeper, ensure_packages

#: bpftrace runs in its own mount namespace, so that mounting tracefs does not change the host.
_MOUNTED: Final = 'mount -t tracefs tracefs /sys/kernel/tracing && exec bpftrace -B line -f json -e "$1"'
#: bpftrace exits when a process calls getpgid() with this pid, which does not exist. SIGINT would be
#: unreliable, because bpftrace notices the signal only if epoll_wait returns EINTR.
_NO_PROCESS: Final = 0x7FFFF000
_FRAME: Final = f"""
tracepoint:syscalls:sys_enter_getpgid /args->pid == {_NO_PROCESS}/ {{ exit(); }}
BEGIN {{ printf("ready\\n"); }}
"""
_END_S: Final = 60


class Bpftrace:
    """Attach all probes while the block runs; then set ``maps`` (``@name`` → value)."""

    def __init__(self, program: str, *, most_keys: int = 4096) -> None:
        ensure_packages(["bpftrace"])
        self._program = program + _FRAME
        self._most_keys = most_keys
        self.maps: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self._keeper = Keeper()
        self._process = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", _MOUNTED, "sh", self._program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "BPFTRACE_MAP_KEYS_MAX": str(self._most_keys)},
        )
        self._keeper.watch(self._process.pid)
        try:
            self._wait_until_attached()
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.getpgid(_NO_PROCESS)
        try:
            output, _errors = self._process.communicate(timeout=_END_S)
        except subprocess.TimeoutExpired:
            self._kill()
            raise
        self._keeper.close()
        for line in output.splitlines():
            if line.startswith("{") and (message := json.loads(line))["type"] == "map":
                self.maps |= message["data"]

    def _wait_until_attached(self) -> None:
        """Wait for BEGIN's output. bpftrace prints it only after all probes are attached."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{") and json.loads(line).get("data") == "ready\n":
                return
        assert self._process.stderr is not None
        raise RuntimeError(f"bpftrace did not start: {self._process.stderr.read()}")

    def _kill(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._keeper.close()


class Independent(Bpftrace):
    """Count hits of ``probes`` (bpftrace's syntax, with a filter); ``count`` is set after the block."""

    def __init__(self, *probes: str) -> None:
        super().__init__("\n".join(f"{probe} {{ @n = count(); }}" for probe in probes))

    @property
    def count(self) -> int:
        return int(self.maps.get("@n", 0))
