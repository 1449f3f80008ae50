"""Debuggers that hold a server, as people leave them behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from innoscope.target.proc import ProcFs
from innoscope.toggles import stopped_threads
from servers import Keeper, ensure_packages

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

_PATIENCE_S = 60
_READY = "innoscope-test-ready"


class Gdb:
    """A gdb on a terminal's end that nobody types into. It holds the process from its first moment on."""

    def __init__(self, pid: int, *options: str) -> None:
        ensure_packages(["gdb"])
        self.of = pid
        self._keeper = Keeper()
        self.process = subprocess.Popen(
            ["gdb", "-nx", "-q", *options, *(["-p", str(pid)] if pid else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            bufsize=1,
            start_new_session=True,
        )
        self._keeper.watch(self.process.pid)

    def __enter__(self) -> Gdb:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.ended:
            self.process.kill()
        with suppress(ProcessLookupError):  # a child by which gdb tries ptrace stays behind, stopped
            os.killpg(self.pid, signal.SIGKILL)
        self.process.communicate()
        self._keeper.close()

    @property
    def pid(self) -> int:
        return self.process.pid

    def type(self, *lines: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.writelines(f"{line}\n" for line in lines)
        self.process.stdin.flush()

    def until_prompt(self) -> Gdb:
        """Return when it has attached, read symbols and takes commands."""
        self.type(f"echo {_READY}\\n")
        assert self.process.stdout is not None
        while _READY not in (line := self.process.stdout.readline()):
            assert line, "gdb has ended"
        return self

    def until_it_traces(self) -> Gdb:
        """Return when the main thread is its; the others follow."""
        until(lambda: ProcFs().status(self.of)["TracerPid"] != "0")
        return self

    def until_it_holds_all(self) -> Gdb:
        """Return when no thread is left that could answer."""
        until(lambda: all(thread.tracer and thread.still for thread in threads(self.of)))
        return self

    def kill(self) -> None:
        """SIGKILL, reaped."""
        self.process.kill()
        self.process.wait()

    def suspend(self) -> None:
        """Ctrl-Z."""
        self.process.send_signal(signal.SIGSTOP)
        until(lambda: ProcFs().stat(self.pid).state == "T")

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None


@dataclass(frozen=True)
class Thread:
    """One thread: whether it is stopped, and the id of its tracer, 0 for none."""

    still: bool
    tracer: int


def threads(pid: int) -> tuple[Thread, ...]:
    found = []
    for name in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
        with suppress(ProcessLookupError):
            status = ProcFs().status(int(name))
            found.append(Thread(status["State"][0] in "Tt", int(status["TracerPid"])))
    return tuple(found)


def stand(pid: int) -> bool:
    """Whether threads stand still, 50 ms long."""
    return stopped_threads.thread_states(ProcFs(), pid).still > 0


def well(pid: int) -> bool:
    """Nothing stands still, nobody traces: told by other means than those that are tested."""
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        try:
            fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields["State"][0] in "Tt" or fields["TracerPid"] != "0":
            return False
    return True


def until(met: Any) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.001)


class Client:
    """One connection that asks, and says how long it waited for the answer."""

    def __init__(self, connected: AbstractContextManager[Any]) -> None:
        self._connected = connected

    def __enter__(self) -> Client:
        self._connection = self._connected.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._connected.__exit__(None, None, None)

    def answered_at(self) -> float:
        """Ask, wait, and return the clock (time.monotonic)."""
        with self._connection.cursor() as cursor:
            cursor.execute("SELECT 6 * 7")
            assert cursor.fetchone() == (42,)
        return time.monotonic()
