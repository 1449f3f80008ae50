"""Supervise long-lived threads: restart failed threads; stop feeding the systemd watchdog if one hangs."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from innoscope.common.errors import InnoscopeError
from innoscope.common.sd_notify import notify

if TYPE_CHECKING:
    from collections.abc import Callable

    #: A heartbeat function, which a supervised function must call at least once per deadline.
    Beat: TypeAlias = Callable[[], None]

_log = logging.getLogger(__name__)

#: Seconds between checks of all threads.
CHECK_S: Final = 1.0
#: Seconds before a failed thread is restarted, doubled after each consecutive failure.
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
#: If a thread ran for this many seconds before it failed, its count of consecutive failures restarts at one.
STEADY_S: Final = 60.0
#: After this many consecutive failures (about a minute) the process exits, so that systemd restarts it.
MAX_FAILURES: Final = 7


@dataclass(frozen=True, slots=True)
class Trouble:
    """Failure counts of this process, and the number of threads and jobs that are stuck now."""

    watch_failures: int = 0  # failed attempts to watch a server
    restarts: int = 0
    stuck: int = 0  # threads and jobs that are stuck now


class GaveUp(InnoscopeError):
    """A thread keeps failing; restarting the process may help."""


class _Task:
    """One supervised thread. ``finished`` is true after its function has returned without an exception."""

    def __init__(self, name: str, run: Callable[[Beat], None], deadline_s: float) -> None:
        self.name, self.deadline_s = name, deadline_s
        self.finished = self.paused = self.hung = False
        self.failures = 0
        self.started_at = self.beat_at = self.restart_at = 0.0
        self.thread: threading.Thread | None = None
        self._run = run

    def beat(self) -> None:
        self.beat_at = time.monotonic()

    def start(self) -> None:
        """Start the thread. Raise RuntimeError if the kernel refuses another thread."""
        self.started_at = self.beat_at = time.monotonic()
        self.thread = None
        thread = threading.Thread(target=self._work, name=self.name, daemon=True)
        thread.start()
        self.thread = thread

    @property
    def alive(self) -> bool:
        return self.thread is not None and self.thread.is_alive()

    def _work(self) -> None:
        try:
            self._run(self.beat)
            self.finished = True
        except BaseException as error:  # including panics of the Rust core; ``check`` restarts the thread
            _log.error("thread failed", extra={"thread_name": self.name}, exc_info=error)


class Supervisor:
    """The long-lived threads of a process. The main thread runs ``watch``."""

    def __init__(self) -> None:
        self._tasks: dict[str, _Task] = {}
        self._ready = False
        self.restarts = 0

    def start(self, name: str, run: Callable[[Beat], None], deadline_s: float) -> None:
        """Call ``run(beat)`` in a new thread. It counts as hung if it does not beat for ``deadline_s`` s."""
        task = _Task(name, run, deadline_s)
        self._tasks[name] = task
        self._begin(task)

    def ready(self) -> None:
        """Report readiness to systemd, and start feeding its watchdog. Further calls do nothing."""
        if not self._ready:
            self._ready = True
            notify("READY=1")

    def watch(self, ended: threading.Event) -> None:
        """Supervise all threads until ``ended`` is set. Raise GaveUp if one keeps failing."""
        while not ended.wait(CHECK_S):
            if not self.check() and self._ready:
                notify("WATCHDOG=1")
        notify("STOPPING=1")

    def check(self) -> list[str]:
        """Restart failed threads. Return the names of hung threads. Raise GaveUp if one keeps failing."""
        now = time.monotonic()
        hung = []
        for task in list(self._tasks.values()):
            if task.finished:
                continue
            if not task.alive:
                self._restart(task, now)
            elif self._hangs(task, now):
                hung.append(task.name)
        return hung

    def join(self, name: str, timeout_s: float) -> None:
        """Wait at most ``timeout_s`` seconds for a thread to end."""
        thread = self._tasks[name].thread
        if thread is not None:
            thread.join(timeout_s)

    def join_all(self, timeout_s: float) -> None:
        """Wait for all threads to end, at most ``timeout_s`` seconds in total."""
        deadline = time.monotonic() + timeout_s
        for name in self._tasks:
            self.join(name, max(0.0, deadline - time.monotonic()))

    def hung(self) -> int:
        """Return the number of hung threads."""
        return sum(task.hung for task in self._tasks.values())

    def _hangs(self, task: _Task, now: float) -> bool:
        silent_s = now - task.beat_at
        hangs = silent_s > task.deadline_s
        if hangs and not task.hung:
            _log.error("thread hangs", extra={"thread_name": task.name, "silent_s": round(silent_s)})
        task.hung = hangs
        return hangs

    def _restart(self, task: _Task, now: float) -> None:
        if not task.paused:
            self._note_failure(task, now)
        elif now >= task.restart_at:
            self.restarts += 1
            self._begin(task)

    def _begin(self, task: _Task) -> None:
        task.paused = False
        try:
            task.start()
        except (RuntimeError, MemoryError) as error:  # the thread limit is reached
            _log.error("cannot start a thread", extra={"thread_name": task.name, "error": str(error)})

    def _note_failure(self, task: _Task, now: float) -> None:
        task.failures = 1 if now - task.started_at >= STEADY_S else task.failures + 1
        if task.failures >= MAX_FAILURES:
            raise GaveUp(
                f"cannot keep the thread {task.name} running: it failed {task.failures} times in a row",
                remedy="see the log for the tracebacks",
            )
        pause = min(FIRST_PAUSE_S * 2 ** (task.failures - 1), LONGEST_PAUSE_S)
        task.paused, task.hung, task.restart_at = True, False, now + pause
        extra = {"thread_name": task.name, "failures": task.failures, "restart_in_s": pause}
        _log.warning("restarting thread", extra=extra)
