"""Supervise long-lived threads: restart failed threads; stop feeding the systemd watchdog if one hangs."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from innoscope.common import slowness
from innoscope.common.errors import InnoscopeError
from innoscope.common.sd_notify import notify

if TYPE_CHECKING:
    from collections.abc import Callable

    #: A heartbeat function, which a supervised function must call at least once per deadline.
    Beat: TypeAlias = Callable[[], None]

_log = logging.getLogger(__name__)

#: Seconds between checks of all threads.
CHECK_S: Final = 1.0
#: Seconds before a failed thread is restarted. The pause doubles after each further consecutive failure.
FIRST_PAUSE_S: Final = 1.0
#: Maximum seconds before a failed thread is restarted.
LONGEST_PAUSE_S: Final = 60.0
#: If a thread ran for this many seconds before it failed, its count of consecutive failures restarts at one.
STEADY_S: Final = 60.0
#: Seconds between two heartbeats while a thread waits.
BEAT_S: Final = 5.0
#: After this many consecutive failures (about a minute) the process exits, so that systemd restarts it.
MAX_FAILURES: Final = 7


@dataclass(frozen=True, slots=True)
class Trouble:
    """Failure counts of this process, and the current number of stuck threads and jobs."""

    watch_failures: int = 0  # failed attempts to watch a server
    restarts: int = 0
    stuck: int = 0


class GaveUp(InnoscopeError):
    """A thread keeps failing; restarting the process may help."""


class _Task:
    """One supervised thread. ``finished`` is true after its function has returned without an exception."""

    def __init__(self, name: str, run: Callable[[Beat], None], deadline_s: float) -> None:
        self.name, self.deadline_s = name, slowness.scaled(deadline_s)
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


@dataclass(slots=True)
class _Observed:
    """A thread that another module starts. ``silent_s`` returns the seconds since its last heartbeat."""

    silent_s: Callable[[], float]
    deadline_s: float
    hung: bool = False


class Supervisor:
    """The long-lived threads of a process. The main thread runs ``watch``."""

    def __init__(self) -> None:
        self._tasks: dict[str, _Task] = {}
        self._observed: dict[str, _Observed] = {}
        self._ready = False
        self.restarts = 0

    def start(self, name: str, run: Callable[[Beat], None], deadline_s: float) -> None:
        """Call ``run(beat)`` in a new thread, which counts as hung if it does not beat for ``deadline_s``.

        The deadline is longer on a slow host, where the operations that the thread waits for also have longer
        timeouts.
        """
        task = _Task(name, run, deadline_s)
        self._tasks[name] = task
        self._begin(task)

    def observe(self, name: str, silent_s: Callable[[], float], deadline_s: float) -> None:
        """Watch a thread of another module, which counts as hung if ``silent_s()`` exceeds ``deadline_s``."""
        self._observed[name] = _Observed(silent_s, deadline_s)

    def ready(self) -> None:
        """Report readiness to systemd, and let ``watch`` feed its watchdog. Further calls do nothing."""
        if not self._ready:
            notify("READY=1")
            self._ready = True

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
                continue
            task.hung = _hangs(task.name, now - task.beat_at, task.deadline_s, logged=task.hung)
            if task.hung:
                hung.append(task.name)
        for name, observed in self._observed.items():
            silent_s = observed.silent_s()
            observed.hung = _hangs(name, silent_s, observed.deadline_s, logged=observed.hung)
            if observed.hung:
                hung.append(name)
        return hung

    def join(self, name: str, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` seconds for a thread to end. Return whether it has ended."""
        thread = self._tasks[name].thread
        if thread is None:
            return True
        thread.join(timeout_s)
        return not thread.is_alive()

    def join_all(self, timeout_s: float) -> None:
        """Wait for all threads to end, at most ``timeout_s`` seconds in total."""
        deadline = time.monotonic() + timeout_s
        for name in self._tasks:
            self.join(name, max(0.0, deadline - time.monotonic()))

    def hung(self) -> int:
        """Return the number of hung threads."""
        hung_tasks = sum(task.hung for task in self._tasks.values())
        return hung_tasks + sum(observed.hung for observed in self._observed.values())

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


def wait(ended: threading.Event, seconds: float, beat: Beat) -> bool:
    """Wait at most ``seconds`` for ``ended``, while sending heartbeats. Return whether it is set."""
    until = time.monotonic() + seconds
    left = seconds
    while left > 0:
        beat()
        if ended.wait(min(left, BEAT_S)):
            return True
        left = until - time.monotonic()
    return ended.is_set()


def _hangs(name: str, silent_s: float, deadline_s: float, *, logged: bool) -> bool:
    """Return whether a thread hangs. Log this unless it was ``logged`` before."""
    hangs = silent_s > deadline_s
    if hangs and not logged:
        _log.error("thread hangs", extra={"thread_name": name, "silent_s": round(silent_s)})
    return hangs
