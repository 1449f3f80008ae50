"""Run a latency profile: measure its cost, run a short trial, then refuse or sample, and detach."""

from __future__ import annotations

import math
import os
import select
import sys
import time
from collections import deque
from contextlib import closing
from typing import TYPE_CHECKING, Final

from innoscope.common.errors import KernelUnable, NoRights
from innoscope.probes.catalog import default_catalog
from innoscope.probes.latency.model import LatencyResult
from innoscope.probes.latency.sampler import Digests, Sampler
from innoscope.probes.trace import costs
from innoscope.probes.trace.functions import choose
from innoscope.probes.trace.model import MIN_STACKS_PER_S, NotTraceable, TooHot, TraceOptions
from innoscope.probes.trace.session import TraceSession
from innoscope.sampling.profile.run import POLL_S, open_process
from innoscope.target.container import require_host_pids
from innoscope.target.native_errors import gone

if TYPE_CHECKING:
    from collections.abc import Callable

    from innoscope.probes.catalog import CommandArguments
    from innoscope.probes.latency.model import LatencyOptions
    from innoscope.probes.trace.model import Cost, TracedFunction
    from innoscope.sampling.profile.setup import Naming
    from innoscope.target.model import Target

    Progress = Callable[[str], None]

#: The catalog's probe of the function that executes a command.
_PROBE: Final = "statement"
#: Number of commands after which the trial ends.
_ENOUGH_HITS: Final = 2000
#: Seconds after which the trial ends in any case.
_TRIAL_S: Final = 0.25
#: Seconds for which the number of waits per statement is measured. Statements from that time are dropped.
_WARM_UP_S: Final = 0.3
#: The number of waits per statement that is assumed until it has been measured.
_USUAL_WAITS: Final = 5.0
#: Maximum number of stacks per second.
_MAX_STACKS_PER_S: Final = 2000.0
#: Maximum number of sampled statements per second.
_MAX_STATEMENTS_PER_S: Final = 1000.0
#: Maximum number of sampled statements, which are kept in memory until the end.
_MAX_STATEMENTS: Final = 100_000
#: After the trial, the cost averaged over _BURST_S seconds may reach _BURST times the budget.
_BURST: Final = 2.0
_BURST_S: Final = 1.0
_INSTEAD: Final = "innoscope profile --off-cpu shows what all threads wait for"


def run(target: Target, options: LatencyOptions, naming: Naming, progress: Progress) -> LatencyResult:
    """Sample the statements of a server.

    Ctrl-C ends the profile early, and so does the server's exit, which also sets ``LatencyResult.error``.
    Raise TooHot, NotTraceable, and the errors of loading, attaching and reading.
    """
    try:
        require_host_pids("measure the latency of statements")
        progress("looking for the function")
        chosen, command = _find(target)
        progress("measuring the cost of a statement")
        cost = _cost(target, chosen)
        with closing(Sampler(target, chosen, command, naming, options.members)) as sampler:
            return _in_process(sampler, options, cost, progress)
    except (NoRights, KernelUnable) as error:
        raise type(error)(
            f"cannot measure the latency of statements: {error.what}",
            remedy="\n".join(filter(None, (error.remedy, f"{_INSTEAD}, without BPF and probes"))),
        ) from error


def _in_process(sampler: Sampler, options: LatencyOptions, cost: Cost, progress: Progress) -> LatencyResult:
    process = open_process(sampler.target)
    try:
        return _Run(sampler, options, cost, process, progress).run()
    finally:
        os.close(process)


def _find(target: Target) -> tuple[TracedFunction, CommandArguments]:
    """Return the function that executes a command, and its arguments.

    Raise NotTraceable if the catalog lacks them, or if the function must not have a return probe.
    """
    chosen = choose(target, _PROBE)
    command = default_catalog().command(target.flavour, target.version)
    if command is None or chosen.timed is None:
        why = (
            f"not in the catalog: {target.flavour} {target.version_text}"
            if command is None
            else "the catalog does not confirm that no C++ exception can cross this function"
        )
        raise NotTraceable(f"cannot find the boundaries of statements: {chosen.name}: {why}", remedy=_INSTEAD)
    return chosen, command


def _cost(target: Target, chosen: TracedFunction) -> Cost:
    """Measure the cost with the programs of a trace, which do as much work per call as the sampler's."""
    options = TraceOptions(callers=True)
    with closing(TraceSession(target, chosen, options, timed=True)) as session:
        return costs.measure(session, chosen, timed=True)


def affordable_stacks(cost: Cost, rate: float, budget: float) -> float:
    """Return the number of stacks per second for which ``rate`` statements/s leave room in the budget.

    It is at least MIN_STACKS_PER_S, even if that exceeds the budget, and at most _MAX_STACKS_PER_S.
    """
    if not cost.stack_s:
        return _MAX_STACKS_PER_S
    room = (budget - cost.share(rate)) * cost.cpus / cost.stack_s
    return max(MIN_STACKS_PER_S, min(_MAX_STACKS_PER_S, room))


def choose_every(rate: float, waits: float, stacks_per_s: float, seconds: float) -> int:
    """Return N for sampling one in N of ``rate`` statements/s, which wait ``waits`` times on average."""
    most = min(_MAX_STATEMENTS_PER_S, _MAX_STATEMENTS / 2 / seconds)
    affordable = min(most, stacks_per_s / max(waits, 0.5))
    return max(1, math.ceil(rate / affordable))


class _Run:
    """One run of a latency profile."""

    def __init__(
        self, sampler: Sampler, options: LatencyOptions, cost: Cost, process: int, progress: Progress
    ) -> None:
        self._sampler, self._options, self._cost, self._progress = sampler, options, cost, progress
        self._watch = select.poll()
        self._watch.register(process, select.POLLIN)
        self._history: deque[tuple[float, int, int]] = deque()  # (time, hits, stacks) of the last _BURST_S
        self._digests = Digests(options.commands)
        self._result = LatencyResult(cost)
        self._began, self._until = 0, sys.maxsize  # only statements that began in this time are included
        self._hits_before = 0
        self._sampled = 0

    def run(self) -> LatencyResult:
        """Attach, sample and detach."""
        result, sampler = self._result, self._sampler
        attached = time.monotonic()
        sampler.attach(on_return=False)
        rate = self._try()
        self._judge(rate)
        sampler.attach(on_return=True)
        began = time.monotonic()
        stacks_per_s = affordable_stacks(self._cost, rate, self._options.budget)
        result.every = choose_every(rate, _USUAL_WAITS, stacks_per_s, self._options.seconds)
        sampler.begin(result.every, stacks_per_s)
        self._start()
        try:
            if self._sample_until(began + min(_WARM_UP_S, self._options.seconds / 4)):
                self._settle_every(stacks_per_s)
                self._sample_until(began + self._options.seconds)
        except KeyboardInterrupt:
            result.ended = f"interrupted after {time.monotonic() - began:.1f} of {self._options.seconds:g} s"
        self._finish()
        result.probed_s = time.monotonic() - attached
        return result

    def _finish(self) -> None:
        """Detach, and complete the result."""
        result, sampler = self._result, self._sampler
        self._progress("detaching the probes")
        self._until = time.monotonic_ns()
        result.seconds = (self._until - self._began) / 1e9
        result.total = sampler.hits - self._hits_before
        sampler.end()
        self._take()
        result.hits, result.stacks, result.lost = sampler.hits, sampler.stacks, sampler.lost
        result.unfinished = sampler.unfinished
        result.statements = self._digests.resolve(result.statements, sampler.prepared_digest)
        result.texts = self._digests.texts
        result.notes += sampler.notes

    def _try(self) -> float:
        """Count commands until their rate can be estimated, and return the rate per second.

        Raise NoSuchProcess if the server exits.
        """
        before, since = self._sampler.hits, time.monotonic()
        while True:
            if self._watch.poll(5):
                raise gone(self._sampler.target.pid)
            hits, now = self._sampler.hits - before, time.monotonic()
            if hits >= _ENOUGH_HITS or now - since >= _TRIAL_S:
                return hits / (now - since)

    def _judge(self, rate: float) -> None:
        share, budget = self._cost.share(rate, MIN_STACKS_PER_S), self._options.budget
        if share > budget:
            self._sampler.close()
            raise refusal(rate, share, budget, self._cost)

    def _settle_every(self, stacks_per_s: float) -> None:
        """Choose N from the statements so far, and drop them, so that all samples have the same weight."""
        rate = self._rate()
        waits = self._sampler.stacks / max(self._sampled, 1)
        self._result.every = choose_every(rate, waits, stacks_per_s, self._options.seconds)
        self._sampler.set_every(self._result.every)
        self._start()

    def _start(self) -> None:
        """Ignore all statements that began before now."""
        self._began, self._hits_before = time.monotonic_ns(), self._sampler.hits
        self._result.began_at = time.time()
        self._result.statements.clear()

    def _rate(self) -> float:
        (then, before, _), (now, hits, _) = self._history[0], self._history[-1]
        return (hits - before) / max(now - then, 1e-9)

    def _sample_until(self, deadline: float) -> bool:
        """Sample until the deadline. Return False if the profile must end earlier."""
        result = self._result
        while (left := deadline - time.monotonic()) > 0:
            if self._watch.poll(max(1, min(POLL_S, left) * 1e3)):
                result.error = gone(self._sampler.target.pid)
                result.ended = "the server exited"
                return False
            self._sampler.poll()
            self._take()
            if reason := self._too_hot(time.monotonic(), self._sampler.hits, self._sampler.stacks):
                result.ended = reason
                return False
            self._progress(f"{len(result.statements):,} statements; {left:.0f} s left; Ctrl-C ends it early")
        return True

    def _take(self) -> None:
        for taken in self._sampler.take():
            self._sampled += 1
            if self._began <= taken.began < self._until:
                waits = self._sampler.waits(taken)
                self._result.statements.append(self._digests.statement(taken, waits))

    def _too_hot(self, now: float, hits: int, stacks: int) -> str | None:
        """Return the reason to end the profile if there are too many statements; None to continue."""
        if len(self._result.statements) >= _MAX_STATEMENTS:
            return f"ended early after {_MAX_STATEMENTS:,} sampled statements, which are enough"
        self._history.append((now, hits, stacks))
        while now - self._history[0][0] > _BURST_S and len(self._history) > 1:
            self._history.popleft()
        then, hits_before, stacks_before = self._history[0]
        seconds = max(now - then, _BURST_S)
        rate = (hits - hits_before) / seconds
        share = self._cost.share(rate, (stacks - stacks_before) / seconds)
        budget = self._options.budget
        if share <= _BURST * budget:
            return None
        return (
            f"ended early because there were too many statements: {rate:,.0f} per second and their stacks "
            f"cost {share:.1%} of the server's CPUs (budget {budget:.1%})"
        )


def refusal(rate: float, share: float, budget: float, cost: Cost) -> TooHot:
    """Return the error for a server that executes too many statements."""
    return TooHot(
        f"the server executes {rate:,.0f} statements per second: probing them at {cost.call_s * 1e6:.1f} µs "
        f"of the server's time each would cost {share:.1%} of its {cost.cpus:g} CPUs; the budget is "
        f"{budget:.1%}",
        remedy=f"--budget {math.ceil(share * 120) / 100:g} allows it\n{_INSTEAD}",
    )
