"""Keep the cost of an attachment's probes within the budget, and extrapolate their counts accordingly."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING

from innoscope.common.errors import NoSuchProcess
from innoscope.probes import guard
from innoscope.probes.attachment import FILE_OPERATIONS
from innoscope.probes.budget import Load, duties
from innoscope.probes.full_time_counts import Totals
from innoscope.probes.governor_retry import Failures
from innoscope.probes.report import ProbeReport, report_of
from innoscope.probes.state import State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from innoscope.probes.attachment import Attachment, MapContents
    from innoscope.probes.calibration import HitCost
    from innoscope.probes.full_time_counts import Share

_LOG = logging.getLogger(__name__)

#: The default budget, as a share of the CPU time that the server may use.
DEFAULT_BUDGET = 0.01
_TICK_S = 1.0
#: Seconds until the first decision: a hot function must not be probed for a whole second.
_FIRST_TICK_S = 0.1
#: Minimum seconds over which a rate is computed.
_ENOUGH_S = 0.05
#: Whenever a rate is computed, the expected rate falls to no less than this share of its previous value.
_MEMORY = 0.85
#: Minimum length in seconds of a window, the part of a cycle during which the probe counts.
_WINDOW_S = 0.1
#: Minimum length in seconds of a cycle. Shorter cycles would cost the server more, because attaching and
#: detaching also take time.
_CYCLE_S = 4.0
#: Minimum seconds per cycle for which a probe is detached, in addition to the duration of the last detach.
_SPARE_S = 0.2
#: Maximum duty cycle. With a higher one, the pause would be shorter than detaching takes.
_MAX_DUTY = 0.95
#: Seconds until a detached probe is attached for one window, and until a refused probe is tried again.
_RETRY_S = 60.0
#: Maximum age in seconds of ``beat_at``, which the thread normally updates at least every second. If it is
#: older, the thread has died or is stuck in the kernel.
OVERDUE_S = 5.0
#: Maximum seconds that ``close`` and ``stop`` wait for the thread.
_JOIN_S = 5.0


class Governor:
    """A controller that attaches an attachment's probes, and detaches those that cost too much. Thread-safe.

    The governor fails safe: any exception detaches everything, is stored in ``failures``, and causes a retry.
    An overdue tick has the same effect: ``probes.guard`` compares the clock with ``beat_at``, the time at
    which the thread last ran.
    """

    def __init__(self, attachment: Attachment, cost: HitCost, *, budget: float = DEFAULT_BUDGET) -> None:
        self.attachment = attachment
        self.cost = cost
        self.budget = budget
        self.totals = Totals()
        self.overhead = 0.0  # share of the server's CPUs that the probes cost since the previous tick
        self.cpus = usable_cpus(attachment.target.pid)
        self._states = {
            point.name: State(point, cost.of(point.placed.site.at, point.placed.places))
            for point in attachment.points
        }
        self.decisions = 0  # number of ticks so far; each tick sets the duty cycle of every probe
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._last_tick = self._stopped_at = time.monotonic()
        self._spent = 0.0  # CPU seconds since the last tick
        self._thread: threading.Thread | None = None
        self.beat_at = self._last_tick  # time.monotonic() when the thread last ran
        self.failures = Failures()

    def start(self) -> None:
        """Attach everything and start watching the cost. After ``stop``, continue with the same state."""
        self._stop.clear()
        try:
            self._resume()
            self._start_thread()
            guard.watch(self)
        except BaseException:  # probes without a governor must not stay attached
            self._stop.set()
            guard.unwatch(self)
            self.attachment.disable()
            raise

    def _resume(self) -> None:
        self.failures.clear()  # before attaching, because the guard detaches probes while ``why`` is set
        self.attachment.enable()
        with self._lock:
            paused = time.monotonic() - self._stopped_at
            for state in self._states.values():
                state.switch_at += paused
                if state.paused_at is not None:
                    state.paused_at += paused
                if state.duty >= 1:
                    self._switch_on(state)
            self._last_tick, self._spent = time.monotonic(), 0.0

    def _start_thread(self) -> None:
        self.beat_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="governor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Detach everything; keep programs, counts, rates and duty cycles for another ``start``."""
        self._stop_thread()
        try:
            with self._lock:
                attached = [state for state in self._states.values() if state.attached_since is not None]
                for state in attached:
                    self._end_window(state)
        finally:
            self.attachment.disable()
        with self._lock:
            self._stopped_at = time.monotonic()
            for state in attached:
                state.attached_s += max(0.0, self._stopped_at - (state.attached_since or self._stopped_at))
                state.attached_since = None
            self._account(self.attachment.read(), self._stopped_at)

    def close(self) -> None:
        """Detach everything and end the governor."""
        self._stop.set()
        try:
            self.attachment.disable()  # before stopping the thread, which may hang
        finally:
            if self._stop_thread():
                self.attachment.close()
            else:  # the thread still uses the descriptors, which are closed when the process exits
                _LOG.error("governor hangs, probes detached", extra={"pid": self.attachment.target.pid})

    def _stop_thread(self) -> bool:
        """Stop the thread. Return whether it has ended."""
        self._stop.set()
        guard.unwatch(self)
        if self._thread is not None:
            self._thread.join(_JOIN_S)
            if self._thread.is_alive():
                return False
            self._thread = None
        return True

    @property
    def alive(self) -> bool:
        """Return whether the governor's thread is running."""
        return self._thread is not None and self._thread.is_alive()

    def check(self, now: float) -> bool:
        """Return whether all probes must be detached now.

        Also restart a dead thread; after a failure, the new thread begins with the pause. The guard calls
        this method. It takes no lock, because a hanging thread may hold one.
        """
        if self._stop.is_set():
            return False
        if self.failures.why is None and now - self.beat_at > OVERDUE_S:
            self._record_failure(f"no tick for {now - self.beat_at:.0f} s", temporary=True)
        if not self.alive:
            self._start_thread()
        return self.failures.why is not None and self.attachment.attached

    def refresh(self) -> None:
        """Update the totals now, for readers that need values newer than the last tick."""
        with self._lock:
            self._account(self.attachment.read(), time.monotonic())

    def report(self) -> list[ProbeReport]:
        """Return a report on each probe of the attachment, including those whose function was not found."""
        with self._lock:
            reports = [
                report_of(state, budget=self.budget, cpus=self.cpus, failures=self.failures)
                for state in self._states.values()
            ]
        for missing in self.attachment.missing:
            probe = missing.probe
            reports.append(
                ProbeReport(
                    probe.name, probe.family, "missing",
                    reason=missing.reason, remedy=missing.remedy, instead=missing.instead,
                )
            )  # fmt: skip
        return reports

    def _run(self) -> None:
        """Run the governor until it is stopped. After a failure, pause with everything detached."""
        while not self._stop.is_set():
            try:
                if self.failures.why is not None:
                    if self._stop.wait(self.failures.pause_s):
                        return
                    self.beat_at = time.monotonic()
                    self._resume()
                self._govern()
            except BaseException as error:  # includes panics of the Rust core; probes must be detached then
                self._fail(error)

    def _govern(self) -> None:
        """Run the governor until it is stopped, or until the guard has detached everything."""
        tick_at = time.monotonic() + _FIRST_TICK_S
        while not self._stop.wait(max(0.0, min(tick_at, self._next_switch()) - time.monotonic())):
            if self.failures.why is not None:
                self._reset_windows()
                return
            guard.ensure_running()
            now = self.beat_at = time.monotonic()
            with self._lock:
                ending = self._switch(now)
                if now >= tick_at:
                    ending += self._tick(now)
                    tick_at = now + _TICK_S
            self._detach(ending)

    def _fail(self, error: BaseException) -> None:
        """Handle a failure of the governor: first detach everything, then record the failure."""
        try:
            self.attachment.disable()
        except BaseException as second:  # the guard retries
            extra = {"pid": self.attachment.target.pid, "error": repr(second)}
            _LOG.critical("cannot detach probes", extra=extra)
        if self.failures.why is None:
            self._record_failure(
                f"{type(error).__name__}: {error}", temporary=not isinstance(error, NoSuchProcess)
            )
        self._reset_windows()

    def _record_failure(self, why: str, *, temporary: bool) -> None:
        self.failures.add(why, temporary=temporary)
        self.overhead = 0.0
        extra = {"pid": self.attachment.target.pid, "reason": str(self.failures)}
        _LOG.error("governor failed, probes detached", extra=extra)

    def _reset_windows(self) -> None:
        with self._lock:
            self._stopped_at = time.monotonic()
            for state in self._states.values():
                state.attached_since = None

    def _next_switch(self) -> float:
        cycled = [
            state.switch_at for state in self._states.values() if state.duty < 1 and not state.point.problem
        ]
        return min(cycled, default=float("inf"))

    def _switch(self, now: float) -> list[State]:
        """Advance the duty cycles: attach the probes that are due, and return the probes to detach."""
        ending = []
        for state in self._states.values():
            if state.duty >= 1 or state.point.problem or now < state.switch_at:
                continue
            if state.attached_since is None:
                self._switch_on(state)
                self._begin_window(state, due=state.switch_at)
            else:
                ending.append(self._end_window(state))
        return ending

    def _switch_on(self, state: State) -> None:
        self.beat_at = time.monotonic()
        self.attachment.attach([state.point])
        state.attached_since = time.monotonic() if state.point.attached else None

    def _begin_window(self, state: State, due: float | None = None) -> None:
        """Begin a window.

        Its length, including the time to detach afterwards, is the duty cycle times the length of the cycle.
        On a busy host, the window may begin later than ``due``. Its hits are then scaled up to cover the
        delay too.
        """
        state.window_start = time.monotonic()
        self._account(self.attachment.read(), state.window_start)  # earlier hits have a different scale
        state.paused_at = None
        if state.duty <= 0:
            state.scale, state.pause, state.switch_at = 1.0, 0.0, state.window_start + _WINDOW_S
            return
        duty = min(state.duty, _MAX_DUTY)
        attached_s = max(_CYCLE_S * duty, _SPARE_S * duty / (1 - duty))
        window = max(_WINDOW_S, attached_s - state.detach_s)
        state.pause = (window + state.detach_s) / duty / window - 1
        late = 0.0 if due is None else max(0.0, state.window_start - due)
        state.scale = 1 + state.pause + late / window
        state.switch_at = state.window_start + window

    def _end_window(self, state: State) -> State:
        """Stop counting now. Schedule the next window so that the pause matches this window's scale."""
        now = time.monotonic()
        self.attachment.stop_counting(state.point)
        pause = (now - state.window_start) * state.pause if state.duty > 0 else _RETRY_S
        state.switch_at = now + min(pause, _RETRY_S)
        state.paused_at = now
        return state

    def _detach(self, states: list[State]) -> None:
        """Detach probes without holding the lock: detaching is slow and must not block readers."""
        for state in states:
            began = self.beat_at = time.monotonic()
            self.attachment.detach([state.point])
            with self._lock:
                state.detach_s = time.monotonic() - began
                if state.attached_since is not None:
                    state.attached_s += time.monotonic() - state.attached_since
                state.attached_since = None

    def _retry_refused(self, now: float) -> None:
        """Retry probes that the kernel refused, for example for lack of memory or file descriptors."""
        for state in self._states.values():
            if state.point.problem and now >= state.switch_at:
                state.switch_at = now + _RETRY_S
                self._switch_on(state)

    def _tick(self, now: float) -> list[State]:
        self._retry_refused(now)
        self._account(self.attachment.read(), now)
        self.decisions += 1
        loads = {
            name: Load(state.expected, state.hit_cost * probe.weight, probe.limit)
            for name, state in self._states.items()
            if not state.point.problem and (probe := state.point.placed.probe)
        }
        present = {name: self._states[name].duty for name in loads}
        decided = duties(loads, budget=self.budget, cpus=self.cpus, now=present)
        changed = [self._states[name] for name, duty in decided.items() if duty != present[name]]
        return [state for state in changed if self._decide(state, decided[state.point.name])]

    def _decide(self, state: State, duty: float) -> bool:
        """Apply a new duty cycle. Return whether the probe must be detached."""
        level = logging.INFO if 1 in (duty, state.duty) or 0 in (duty, state.duty) else logging.DEBUG
        extra = {
            "probe": state.point.name,
            "pid": self.attachment.target.pid,
            "hits_per_s": round(state.rate),
            "duty": round(duty, 3),
            "duty_before": round(state.duty, 3),
        }
        _LOG.log(level, "duty cycle of probe changed", extra=extra)
        always, state.duty = state.duty >= 1, duty
        if duty >= 1:
            if state.attached_since is None:
                self._switch_on(state)
            state.scale = 1.0
        elif always and duty > 0:
            # The first window begins now, so that its hits are extrapolated to the pause that follows.
            self._begin_window(state)
        if duty > 0 or state.attached_since is None:
            return False
        self._end_window(state)
        return True

    def _account(self, contents: MapContents, now: float) -> None:
        """Add the hits, costs and counts since the last call."""
        for state in self._states.values():
            self._spent += self._account_one(state, contents.hits[state.point.index], now)
        if (elapsed := now - self._last_tick) >= _TICK_S / 2:
            self.overhead = self._spent / elapsed / self.cpus
            self._last_tick, self._spent = now, 0.0
        shares = {name: share for name, state in self._states.items() if (share := state.share(now))}
        operations = {FILE_OPERATIONS[name]: shares[name] for name in FILE_OPERATIONS.keys() & shares.keys()}
        self.totals.add(contents, self._of_metrics(shares), operations)

    def _account_one(self, state: State, hits: int, now: float) -> float:
        if state.attached_since is not None:
            state.attached_s += now - state.attached_since
            state.attached_since = now
        new_hits = hits - state.hits
        state.hits = hits
        state.new_hits += new_hits
        if state.attached_s >= _ENOUGH_S:
            state.rate = state.new_hits / state.attached_s
            # One window that happens to have few hits must not raise the duty cycle.
            state.expected = max(state.rate, _MEMORY * state.expected)
            state.attached_s, state.new_hits = 0.0, 0
        spent = new_hits * state.hit_cost
        state.cost_s += spent
        return spent

    def _of_metrics(self, shares: Mapping[str, Share]) -> dict[str, Share]:
        """Return the share by which to extrapolate each metric that a probe on a duty cycle feeds."""
        found: dict[str, Share] = {}
        for name, share in shares.items():
            for metric in self._states[name].point.placed.feeds:
                found[metric] = max(found.get(metric, share), share, key=lambda one: one.scale)
        return found


def usable_cpus(pid: int) -> float:
    """Return the number of CPUs in the process's affinity mask, or of all CPUs if the mask is unknown."""
    try:
        return float(len(os.sched_getaffinity(pid)))
    except OSError:
        return float(os.cpu_count() or 1)
