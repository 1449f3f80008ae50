"""Keeps the cost of an attachment's probes within the budget, and its counts honest while it does."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING

from innoscope.common.errors import NoSuchProcess
from innoscope.probes import guard
from innoscope.probes.budget import Load, duties
from innoscope.probes.failures import Failures
from innoscope.probes.full_time_counts import Totals
from innoscope.probes.report import ProbeReport, report_of
from innoscope.probes.state import State

if TYPE_CHECKING:
    from collections.abc import Iterable

    from innoscope.probes.attachment import Attachment, Reading
    from innoscope.probes.calibration import HitCost

_LOG = logging.getLogger(__name__)

#: A share of the CPU time that the server may use.
DEFAULT_BUDGET = 0.01
_TICK_S = 1.0
#: The first look at what everything costs comes early: a hot function must not stay probed for a second.
_FIRST_TICK_S = 0.1
#: Less time than this says nothing about a rate.
_ENOUGH_S = 0.05
#: What is left of a rate at the next one, in what is reckoned with.
_MEMORY = 0.85
#: How long a probe on a duty cycle counts at a time, at least, and the least time of a cycle: putting
#: one on and taking it off costs the server too.
_WINDOW_S = 0.1
_CYCLE_S = 4.0
#: What we leave the kernel to take one off beyond what it took the last time.
_SPARE_S = 0.2
#: Hardly off is on: the pause would be shorter than taking it off takes.
_MOST_DUTY = 0.95
#: A probe that was taken off is tried again for one window after so long, and one that was refused.
_RETRY_S = 60.0
#: The thread ticks each second and never waits so long: it hangs in the kernel, or is gone.
OVERDUE_S = 5.0
#: How long an end waits for the thread.
_JOIN_S = 5.0


class Governor:
    """Owns an attachment: puts its probes on, and off again where they cost too much. Thread-safe.

    It fails safe: whatever it raises takes everything off, ``failures`` say why, and it tries again later. So
    does a tick that is overdue: ``probes.guard`` compares ``beat_at``, when the thread was last at work, with
    the clock.
    """

    def __init__(self, attachment: Attachment, cost: HitCost, *, budget: float = DEFAULT_BUDGET) -> None:
        self.attachment = attachment
        self.cost = cost
        self.budget = budget
        self.totals = Totals()
        self.overhead = 0.0  # share of the server's CPUs, over the last tick
        self.cpus = usable_cpus(attachment.target.pid)  # that the server may use
        self._states = {
            point.name: State(point, cost.of(point.placed.site.at, point.placed.places))
            for point in attachment.points
        }
        self.decisions = 0  # how often it was decided what may stay
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._last_tick = self._stopped_at = time.monotonic()
        self._spent = 0.0  # seconds, since then
        self._thread: threading.Thread | None = None
        self.beat_at = self._last_tick  # when the thread was last seen at work, monotonic
        self.failures = Failures()

    def start(self) -> None:
        """Attach everything and begin to watch what it costs; after ``stop`` it goes on where it was."""
        self._stop.clear()
        try:
            self._resume()
            self._begin_watch()
            guard.watch(self)
        except BaseException:  # what nobody governs must not stay on
            self._stop.set()
            guard.forget(self)
            self.attachment.bar()
            raise

    def _resume(self) -> None:
        self.failures.clear()  # first: the guard bars what is attached after a failure
        self.attachment.unbar()
        with self._lock:
            paused = time.monotonic() - self._stopped_at
            for state in self._states.values():
                state.switch_at += paused
                if state.duty >= 1:
                    self._switch_on(state)
            self._last_tick, self._spent = time.monotonic(), 0.0

    def _begin_watch(self) -> None:
        self.beat_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="governor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take everything off, and keep programs, counts, rates and duty cycles for another ``start``."""
        self._end_watch()
        try:
            with self._lock:
                attached = [state for state in self._states.values() if state.on_since is not None]
                for state in attached:
                    self._end_window(state)
        finally:
            self.attachment.bar()
        with self._lock:
            self._stopped_at = time.monotonic()
            for state in attached:
                state.attached_s += max(0.0, self._stopped_at - (state.on_since or self._stopped_at))
                state.on_since = None
            self._account(self.attachment.read(), self._stopped_at)

    def close(self) -> None:
        """Take everything off for good."""
        self._stop.set()
        try:
            self.attachment.bar()  # first: the thread may hang
        finally:
            if self._end_watch():
                self.attachment.close()
            else:  # its descriptors are still in use: they end with the process
                _LOG.error("governor hangs, probes are off: pid=%d", self.attachment.target.pid)

    def _end_watch(self) -> bool:
        """Whether the thread has ended."""
        self._stop.set()
        guard.forget(self)
        if self._thread is not None:
            self._thread.join(_JOIN_S)
            if self._thread.is_alive():
                return False
            self._thread = None
        return True

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def check(self, now: float) -> bool:
        """Whether everything must come off now. For the guard, so it takes no lock: the thread may have it.

        A thread that is gone begins again, with the pause after a failure.
        """
        if self._stop.is_set():
            return False
        if self.failures.why is None and now - self.beat_at > OVERDUE_S:
            self._tell_failure(f"no tick for {now - self.beat_at:.0f} s", temporary=True)
        if not self.alive:
            self._begin_watch()
        return self.failures.why is not None and self.attachment.attached

    def refresh(self) -> None:
        """Add up what is new now; for a reader that wants the present and not the last tick."""
        with self._lock:
            self._account(self.attachment.read(), time.monotonic())

    def report(self) -> list[ProbeReport]:
        """All probes of the chosen families, attached or not."""
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
        """Govern until the end, with pauses after failures in which everything is off."""
        while not self._stop.is_set():
            try:
                if self.failures.why is not None:
                    if self._stop.wait(self.failures.pause_s):
                        return
                    self.beat_at = time.monotonic()
                    self._resume()
                self._govern()
            except BaseException as error:  # a panic of the core too: what nobody governs must not stay on
                self._fail(error)

    def _govern(self) -> None:
        """Return when it is to end, or the guard has taken everything off."""
        tick_at = time.monotonic() + _FIRST_TICK_S
        while not self._stop.wait(max(0.0, min(tick_at, self._next_switch()) - time.monotonic())):
            if self.failures.why is not None:
                self._forget_windows()
                return
            guard.revive()
            now = self.beat_at = time.monotonic()
            with self._lock:
                ending = self._switch(now)
                if now >= tick_at:
                    ending += self._tick(now)
                    tick_at = now + _TICK_S
            self._take_off(ending)

    def _fail(self, error: BaseException) -> None:
        """Everything off, and only then what there is to say."""
        try:
            self.attachment.bar()
        except BaseException as second:  # the guard tries again
            _LOG.critical("cannot detach probes: pid=%d error=%r", self.attachment.target.pid, second)
        if self.failures.why is None:
            self._tell_failure(
                f"{type(error).__name__}: {error}", temporary=not isinstance(error, NoSuchProcess)
            )
        self._forget_windows()

    def _tell_failure(self, why: str, *, temporary: bool) -> None:
        self.failures.add(why, temporary=temporary)
        self.overhead = 0.0
        _LOG.error(
            "governor failed, all probes off: pid=%d reason=%s", self.attachment.target.pid, self.failures
        )

    def _forget_windows(self) -> None:
        with self._lock:
            self._stopped_at = time.monotonic()
            for state in self._states.values():
                state.on_since = None

    def _next_switch(self) -> float:
        cycled = [
            state.switch_at for state in self._states.values() if state.duty < 1 and not state.point.problem
        ]
        return min(cycled, default=float("inf"))

    def _switch(self, now: float) -> list[State]:
        """Duty cycles: puts on what is due, and says what is to come off."""
        ending = []
        for state in self._states.values():
            if state.duty >= 1 or state.point.problem or now < state.switch_at:
                continue
            if state.on_since is None:
                self._switch_on(state)
                self._begin_window(state, due=state.switch_at)
            else:
                ending.append(self._end_window(state))
        return ending

    def _switch_on(self, state: State) -> None:
        self.beat_at = time.monotonic()
        self.attachment.attach([state.point])
        state.on_since = time.monotonic() if state.point.attached else None

    def _begin_window(self, state: State, due: float | None = None) -> None:
        """As long as the cycle's duty allows, together with the time that it takes to be taken off.

        On a busy host it begins later than it was ``due``: its hits stand for that time too.
        """
        state.begun = time.monotonic()
        self._account(self.attachment.read(), state.begun)  # what came before has another scale
        if state.duty <= 0:
            state.scale, state.pause, state.switch_at = 1.0, 0.0, state.begun + _WINDOW_S
            return
        duty = min(state.duty, _MOST_DUTY)
        spared = max(_CYCLE_S * duty, _SPARE_S * duty / (1 - duty))
        window = max(_WINDOW_S, spared - state.off_s)
        state.pause = (window + state.off_s) / duty / window - 1
        late = 0.0 if due is None else max(0.0, state.begun - due)
        state.scale = 1 + state.pause + late / window
        state.switch_at = state.begun + window

    def _end_window(self, state: State) -> State:
        """It stops to count at once. Its next window begins so much later as this one's scale says."""
        now = time.monotonic()
        self.attachment.stop_counting(state.point)
        pause = (now - state.begun) * state.pause if state.duty > 0 else _RETRY_S
        state.switch_at = now + min(pause, _RETRY_S)
        return state

    def _take_off(self, states: list[State]) -> None:
        """Not under the lock: the kernel takes its time, and readers want the others' numbers."""
        for state in states:
            began = self.beat_at = time.monotonic()
            self.attachment.detach([state.point])
            with self._lock:
                state.off_s = time.monotonic() - began
                if state.on_since is not None:
                    state.attached_s += time.monotonic() - state.on_since
                state.on_since = None

    def _retry_refused(self, now: float) -> None:
        """What the kernel had no memory or descriptor for may find some now."""
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
        """Whether it is to come off."""
        _LOG.log(
            logging.INFO if 1 in (duty, state.duty) or 0 in (duty, state.duty) else logging.DEBUG,
            "probe %s of process %d: %.0f hits a second; attached %.1f %% of the time, before %.1f %%",
            state.point.name, self.attachment.target.pid, state.rate, 100 * duty, 100 * state.duty,
        )  # fmt: skip
        always, state.duty = state.duty >= 1, duty
        if duty >= 1:
            if state.on_since is None:
                self._switch_on(state)
            state.scale = 1.0
        elif always and duty > 0:
            # Its first window begins now, so that what comes in the pause after it is counted for.
            self._begin_window(state)
        if duty > 0 or state.on_since is None:
            return False
        self._end_window(state)
        return True

    def _account(self, reading: Reading, now: float) -> None:
        """Hits, cost and counts since the last time."""
        for state in self._states.values():
            self._spent += self._account_one(state, reading.hits[state.point.index], now)
        if (elapsed := now - self._last_tick) >= _TICK_S / 2:
            self.overhead = self._spent / elapsed / self.cpus
            self._last_tick, self._spent = now, 0.0
        self.totals.add(reading, self._scales(self._states.values()))

    def _account_one(self, state: State, hits: int, now: float) -> float:
        if state.on_since is not None:
            state.attached_s += now - state.on_since
            state.on_since = now
        fresh = hits - state.hits
        state.hits = hits
        state.fresh += fresh
        if state.attached_s >= _ENOUGH_S:
            state.rate = state.fresh / state.attached_s
            # A window that happens to be quiet is no reason to let go.
            state.expected = max(state.rate, _MEMORY * state.expected)
            state.attached_s, state.fresh = 0.0, 0
        spent = fresh * state.hit_cost
        state.cost_s += spent
        return spent

    @staticmethod
    def _scales(states: Iterable[State]) -> dict[str, float]:
        """For metrics fed by a probe on a duty cycle: seen times this is what there was."""
        scales: dict[str, float] = {}
        for state in states:
            if state.scale > 1:
                for metric in state.point.placed.feeds:
                    scales[metric] = max(scales.get(metric, 1.0), state.scale)
        return scales


def usable_cpus(pid: int) -> float:
    """CPUs that the process may use (its affinity)."""
    try:
        return float(len(os.sched_getaffinity(pid)))
    except OSError:
        return float(os.cpu_count() or 1)
