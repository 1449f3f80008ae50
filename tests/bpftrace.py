"""Run bpftrace during a block of code, then read its maps."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from contextlib import suppress
from typing import Any, Final, Self

from servers import Keeper, ensure_packages

#: bpftrace runs in its own mount namespace, so that mounting tracefs does not change the host.
_MOUNTED: Final = 'mount -t tracefs tracefs /sys/kernel/tracing && exec bpftrace -B line -f json -e "$1"'
#: bpftrace exits when a process calls getpgid() with ``end``, a pid that does not exist. SIGINT would be
#: unreliable, because bpftrace notices the signal only if epoll_wait returns EINTR.
_FRAME: Final = """
tracepoint:syscalls:sys_enter_getpgid /args->pid == {end}/ {{ exit(); }}
BEGIN {{ printf("ready\\n"); }}
"""
#: Range of ``end``: above the highest pid (PID_MAX_LIMIT in include/linux/threads.h), and within pid_t.
_NO_PIDS: Final = range(1 << 22, 1 << 31)
_END_S: Final = 60


class Bpftrace:
    """Context manager: a bpftrace program, with all probes attached while the block runs.

    After the block, ``maps`` contains the values of the program's maps by name, such as ``@n``.
    """

    def __init__(self, program: str, *, most_keys: int = 4096) -> None:
        ensure_packages(["bpftrace"])
        # Each instance has its own number, because every bpftrace on the host sees each getpgid() call.
        self._end = secrets.choice(_NO_PIDS)
        self._program = program + _FRAME.format(end=self._end)
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
        early = self._process.poll() is not None
        with suppress(ProcessLookupError):
            os.getpgid(self._end)
        try:
            output, errors = self._process.communicate(timeout=_END_S)
        except subprocess.TimeoutExpired:
            self._kill()
            raise
        self._keeper.close()
        if early:
            raise RuntimeError(f"bpftrace exited before the end of the block: {errors}")
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
    """A count of the hits of ``probes`` (bpftrace probes with optional filters) while the block runs."""

    def __init__(self, *probes: str) -> None:
        super().__init__("\n".join(f"{probe} {{ @n = count(); }}" for probe in probes))

    @property
    def count(self) -> int:
        return int(self.maps.get("@n", 0))
