"""Debuggers that stop a server, and functions that check whether the server is stopped or traced."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from innoscope.target.proc import ProcFs
from innoscope.toggles import stopped_threads
from safety.well import held_threads
from servers import Keeper, ensure_packages
from waiting import until

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

_READY = "innoscope-test-ready"


class Gdb:
    """A gdb that waits at its prompt. gdb stops the process as soon as it attaches."""

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
        with suppress(ProcessLookupError):  # gdb may leave a stopped child, which it uses to detect features
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
        """Wait until gdb has attached, has read the symbols and accepts commands."""
        self.type(f"echo {_READY}\\n")
        assert self.process.stdout is not None
        while _READY not in (line := self.process.stdout.readline()):
            assert line, "gdb has exited"
        return self

    def until_traced(self) -> Gdb:
        """Wait until gdb traces the main thread; gdb then attaches to the other threads."""
        until(lambda: ProcFs().status(self.of)["TracerPid"] != "0")
        return self

    def until_all_stopped(self) -> Gdb:
        """Wait until gdb has stopped all threads."""
        until(lambda: all(thread.tracer and thread.stopped for thread in threads(self.of)))
        return self

    def kill(self) -> None:
        """Send SIGKILL and reap the process."""
        self.process.kill()
        self.process.wait()

    def suspend(self) -> None:
        """Suspend gdb, as Ctrl-Z does."""
        self.process.send_signal(signal.SIGSTOP)
        until(lambda: ProcFs().stat(self.pid).state == "T")

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None


@dataclass(frozen=True)
class Thread:
    """One thread of a process. ``tracer`` is the pid of the thread's tracer, or 0."""

    stopped: bool
    tracer: int


def threads(pid: int) -> tuple[Thread, ...]:
    found = []
    for name in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
        with suppress(ProcessLookupError):
            status = ProcFs().status(int(name))
            found.append(Thread(status["State"][0] in "Tt", int(status["TracerPid"])))
    return tuple(found)


def is_stopped(pid: int) -> bool:
    """Return whether any thread of the process stays stopped for 50 ms."""
    return stopped_threads.thread_states(ProcFs(), pid).still > 0


def well(pid: int) -> bool:
    """Return whether no thread is stopped or traced. This does not use the code under test."""
    return not held_threads(pid)


class Client:
    """A client connection that measures when the server responds."""

    def __init__(self, connected: AbstractContextManager[Any]) -> None:
        self._connected = connected

    def __enter__(self) -> Client:
        self._connection = self._connected.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._connected.__exit__(None, None, None)

    def answered_at(self) -> float:
        """Run a query, wait for its result and return the time (time.monotonic)."""
        with self._connection.cursor() as cursor:
            cursor.execute("SELECT 6 * 7")
            assert cursor.fetchone() == (42,)
        return time.monotonic()
