"""Takes off the probes of a governor that failed to, or does not tick: one thread for all of this process."""

from __future__ import annotations

import logging
import signal
import threading
import time
from typing import Final, Protocol

_LOG = logging.getLogger(__name__)

PERIOD_S: Final = 0.5
#: The kernel takes off what a process that ends has on. So we end if it is not to be had in another way.
_MOST_FAILURES: Final = 3


class Attached(Protocol):
    """What a governor has attached."""

    def bar(self) -> None:
        """Take everything off and keep it off."""


class Governor(Protocol):
    """Who is watched."""

    @property
    def attachment(self) -> Attached:
        """What it governs."""

    def check(self, now: float) -> bool:
        """Whether everything must come off."""


class Guard:
    """``beat_at`` says when its thread was last at work. It takes no lock that a governor may have."""

    def __init__(self) -> None:
        self.beat_at = time.monotonic()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._watched: dict[int, Governor] = {}  # by id()
        self._failures: dict[int, int] = {}
        self._barring: dict[int, threading.Thread] = {}

    def watch(self, governor: Governor) -> None:
        """Look after it from now on."""
        with self._lock:
            self._watched[id(governor)] = governor
        self.revive()

    def revive(self) -> None:
        """Start the thread unless it is alive. Governors call this at each tick."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="guard", daemon=True)
                self._thread.start()

    def forget(self, governor: Governor) -> None:
        """It ends, and takes its probes off by itself."""
        with self._lock:
            for known in (self._watched, self._failures, self._barring):
                known.pop(id(governor), None)

    def _run(self) -> None:
        while True:
            time.sleep(PERIOD_S)
            self.beat_at = time.monotonic()
            with self._lock:
                watched = list(self._watched.items())
            for key, governor in watched:
                try:
                    if governor.check(time.monotonic()):
                        self._take_off(key, governor)
                except BaseException as error:  # a panic of the core too: the others must be looked after
                    _LOG.critical("guard of probes failed: error=%r", error)

    def _take_off(self, key: int, governor: Governor) -> None:
        """On a thread of its own: the kernel may hold it for long, and the others must be looked after."""
        before = self._barring.get(key)
        if before is not None and before.is_alive():
            return
        bar = threading.Thread(target=self._bar, args=(key, governor), name="detach", daemon=True)
        try:
            bar.start()
        except RuntimeError:  # the host has no room for a thread
            self._bar(key, governor)
        else:
            self._barring[key] = bar

    def _bar(self, key: int, governor: Governor) -> None:
        try:
            governor.attachment.bar()
        except BaseException as error:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            _LOG.critical("cannot detach probes: failures=%d error=%r", failures, error)
            if failures >= _MOST_FAILURES:
                signal.raise_signal(signal.SIGABRT)
        else:
            self._failures.pop(key, None)


_GUARD: Final = Guard()
watch = _GUARD.watch
revive = _GUARD.revive
forget = _GUARD.forget
