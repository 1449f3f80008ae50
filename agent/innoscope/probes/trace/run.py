"""Run one trace: choose the function, calibrate, run a short trial, then refuse or trace, and detach."""

from __future__ import annotations

import time
from collections import deque
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Final

from innoscope.probes.mangling import has_other_arguments
from innoscope.probes.trace import costs, text
from innoscope.probes.trace.callers import Callers
from innoscope.probes.trace.functions import choose
from innoscope.probes.trace.model import FORCED_SECONDS, NotTraceable, TooHot, TraceResult, Trial
from innoscope.probes.trace.server_pace import Loss, ServerPace
from innoscope.probes.trace.session import INTERVAL_S, TraceSession
from innoscope.target.container import require_host_pids
from innoscope.target.discover import still_same
from innoscope.target.native_errors import gone

if TYPE_CHECKING:
    from collections.abc import Callable

    from innoscope.probes.trace.model import Cost, TracedFunction, TraceOptions
    from innoscope.target.model import Target

    Progress = Callable[[str], None]
    OpenPace = Callable[[], ServerPace]

#: Number of hits after which the trial ends.
_ENOUGH_HITS: Final = 2000
#: Seconds after which the trial ends in any case.
_TRIAL_S: Final = 0.05
_TRIAL_POLL_S: Final = 0.0005
_UNTIMED: Final = (
    "no latency: the catalog does not confirm that no C++ exception can cross this function, "
    "and an exception that crosses a return probe kills the server"
)
#: After the trial, the cost averaged over _BURST_S seconds may reach _BURST times the budget.
_BURST: Final = 2.0
_BURST_S: Final = 1.0


def run(
    target: Target, function: str, options: TraceOptions, *, progress: Progress, open_pace: OpenPace
) -> TraceResult:
    """Trace a function.

    ``progress`` is called with the current step. ``open_pace`` creates the ServerPace, if one is needed.
    Ctrl-C ends the trace early, and so does the server's exit, which also sets ``TraceResult.error``.
    Raise TooHot, NotTraceable, Ambiguous, and the errors of loading, attaching and reading.
    """
    require_host_pids("trace a function")
    progress("looking for the function")
    chosen = choose(target, function)
    _check_argument(chosen, options)
    timed = options.latency and chosen.timed is not None
    with closing(TraceSession(target, chosen, options, timed=timed)) as session, ExitStack() as stack:
        progress("measuring the cost of a hit")
        cost = costs.measure(session, chosen, timed=timed)
        session.reset()
        pace = stack.enter_context(open_pace()) if options.force else None
        before = pace.measure() if pace else {}
        tracer = TraceRun(session, chosen, options, cost, timed=timed)
        result = tracer.trace(progress, pace)
        if pace:
            result.loss = tracer.loss(result, before, pace)
        return result


def _check_argument(chosen: TracedFunction, options: TraceOptions) -> None:
    changed = [place.symbol for place in chosen.places if has_other_arguments(place.symbol)]
    if options.argument is not None and changed:
        raise NotTraceable(
            f"{', '.join(changed)}: the compiler changed its arguments, so they differ from the source",
            remedy="trace it without --arg, or one of its callers with it",
        )


class TraceRun:
    """One run of a trace."""

    def __init__(
        self,
        session: TraceSession,
        chosen: TracedFunction,
        options: TraceOptions,
        cost: Cost,
        *,
        timed: bool,
    ) -> None:
        self._session, self._chosen, self._options, self._cost = session, chosen, options, cost
        self._timed = timed
        self._stacks = cost.stacks_per_second(options.budget) if options.callers else 0.0
        self._history: deque[tuple[float, float]] = deque()  # (time, hits) of the last _BURST_S
        self._during: dict[str, float] = {}
        self.callers = Callers(session.target, session.ring) if options.callers else None

    def trace(self, progress: Progress, pace: ServerPace | None) -> TraceResult:
        """Attach, watch and detach. Raise TooHot, and the errors of attaching."""
        if pace:
            pace.rates()
        if self._options.callers:
            self._session.sample(self._stacks)
        self._session.start_counting()
        began = time.monotonic()
        result = TraceResult(self._chosen, self._try(), self._cost)
        if self._options.latency and not self._timed:
            result.notes.append(_UNTIMED)
        self._judge(result)
        if self._timed:
            self._session.attach(on_return=True)
        try:
            self._watch(result, began, progress)
        except KeyboardInterrupt:
            result.ended = f"interrupted after {time.monotonic() - began:.1f} of {self._options.seconds:g} s"
        self._session.stop_counting()
        result.seconds = time.monotonic() - began
        self._during = pace.rates() if pace else {}
        progress("detaching the probes")
        self._session.detach()
        self._collect(result)
        return result

    def _try(self) -> Trial:
        """Attach the probes, and count hits until the rate can be estimated."""
        began = time.monotonic()
        self._session.attach()
        before, since = self._session.hits(), time.monotonic()
        while True:
            time.sleep(_TRIAL_POLL_S)
            hits, now = self._session.hits() - before, time.monotonic()
            if hits >= _ENOUGH_HITS or now - since >= _TRIAL_S:
                return Trial(hits, now - since, began)

    def _judge(self, result: TraceResult) -> None:
        """If the cost exceeds the budget, drop the return probe. If that is not enough, raise TooHot."""
        trial, budget = result.trial, self._options.budget
        if self._options.force or self._fits(trial.rate, budget):
            return
        if self._timed:
            with_return = self._cost.share(trial.rate)
            self._timed, self._cost = False, self._cost.without_return
            if self._fits(trial.rate, budget):
                result.cost = self._cost
                result.notes.append(
                    f"no latency: with a return probe it would cost {with_return:.1%} of the "
                    f"server's CPUs (budget {budget:.1%}; --budget or --force)"
                )
                return
        self._session.detach()
        raise refusal(self._chosen, self._options, self._cost, trial, time.monotonic() - trial.began)

    def _fits(self, rate: float, budget: float) -> bool:
        limit = self._chosen.limit
        return self._cost.share(rate, min(rate, self._stacks)) <= budget and not (limit and rate > limit)

    def _watch(self, result: TraceResult, began: float, progress: Progress) -> None:
        last = began, self._session.hits()
        while (left := began + self._options.seconds - time.monotonic()) > 0:
            time.sleep(min(INTERVAL_S, left))
            if not still_same(self._session.target):
                result.error = gone(self._session.target.pid)
                result.ended = f"the server exited after {time.monotonic() - began:.1f} s"
                return
            now = time.monotonic(), self._session.hits()
            self._read_stacks(last, now)
            if not self._options.force and (reason := self._too_hot(*now)):
                result.ended = (
                    f"ended after {now[0] - began:.1f} s because the function was called too often: {reason}"
                )
                return
            last = now
            progress(f"{now[1]:,} calls; {max(0.0, left):.0f} s left; Ctrl-C prints the result so far")

    def _read_stacks(self, last: tuple[float, int], now: tuple[float, int]) -> None:
        if self.callers is None:
            return
        self.callers.drain()
        self._session.sample(self._stacks, (now[1] - last[1]) / max(now[0] - last[0], 1e-9))

    def _too_hot(self, now: float, hits: int) -> str | None:
        """Return the reason to end the trace if the function has become too hot; None to continue."""
        self._history.append((now, hits))
        while now - self._history[0][0] > _BURST_S and len(self._history) > 1:
            self._history.popleft()
        then, before = self._history[0]
        rate = (hits - before) / max(now - then, _BURST_S)
        share = self._cost.share(rate, min(rate, self._stacks))
        limit, budget = self._chosen.limit, self._options.budget
        if share <= _BURST * budget and not (limit and rate > limit):
            return None
        return f"{rate:,.0f} calls per second, {share:.1%} of the server's CPUs (budget {budget:.1%})"

    def _collect(self, result: TraceResult) -> None:
        counts = self._session.read()
        result.calls, result.hits = counts.counter("calls"), counts.counter("hits")
        result.latency = self._session.latency(counts) if self._timed else None
        result.values = self._session.values(counts)
        if self.callers is not None:
            self.callers.drain()
            result.stacks_taken = self.callers.taken
            result.report = self.callers.report(text.headline(result))
            result.notes += result.report.notes
            result.stacks_held_back = counts.counter("stacks_held_back")
            result.stacks_lost = counts.counter("stacks_lost")

    def loss(self, result: TraceResult, before: dict[str, float], pace: ServerPace) -> Loss:
        """Return the cost, calculated from hits, and the server's throughput before and during the trace."""
        return Loss(
            spent=result.spent,
            seconds=result.seconds,
            share=result.spent / max(result.seconds, 1e-9) / self._cost.cpus,
            before=before,
            during=self._during,
            why_no_sql=pace.why_no_sql,
        )


def refusal(
    chosen: TracedFunction, options: TraceOptions, cost: Cost, trial: Trial, probed_s: float
) -> TooHot:
    """Return the TooHot error, with the rate, the cost and the alternatives."""
    share = cost.share(trial.rate)
    what = (
        f"{chosen.name} is called too often: at least {trial.rate:,.0f} calls per second at "
        f"{cost.call_s * 1e6:.1f} µs of the server's time each would cost {share:.1%} of its "
        f"{cost.cpus:g} CPUs ({1e3 * trial.rate * cost.call_s:,.0f} ms/s); the budget is {options.budget:.1%}"
    )
    if cost.weight > 1:
        what += f", and other threads wait for each of its calls (weight {cost.weight})"
    remedy = [f"it was probed for {1e3 * probed_s:.0f} ms to measure this; the probes are detached"]
    if chosen.why_hot:
        remedy.append(f"why: {chosen.why_hot}")
    if chosen.instead:
        remedy.append(f"instead: {chosen.instead}")
    remedy.append(f"--force traces it anyway, for {FORCED_SECONDS:g} s, and reports what the server lost")
    return TooHot(what, remedy="\n".join(remedy))
