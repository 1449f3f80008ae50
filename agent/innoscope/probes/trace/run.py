"""One trace: chosen, calibrated, tried, refused or carried through, taken off."""

from __future__ import annotations

import time
from collections import deque
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Final

from innoscope.probes.mangling import is_partial
from innoscope.probes.trace import costs, text
from innoscope.probes.trace.callers import Callers
from innoscope.probes.trace.functions import choose
from innoscope.probes.trace.model import FORCED_SECONDS, NotHere, Seen, TooHot, Trial
from innoscope.probes.trace.server_pace import Loss, Pace
from innoscope.probes.trace.session import STRETCH_S, Session
from innoscope.target.discover import still_same
from innoscope.target.native_errors import gone

if TYPE_CHECKING:
    from collections.abc import Callable

    from innoscope.probes.trace.model import Chosen, Wanted
    from innoscope.target.model import Target

    Progress = Callable[[str], None]
    Paced = Callable[[], Pace]

#: A trial ends after so many hits, or so long.
_ENOUGH_HITS: Final = 2000
_TRIAL_S: Final = 0.05
_LOOK_S: Final = 0.0005
_UNTIMED: Final = (
    "not how long calls take: the catalog does not say of this function that no C++ exception can cross it, "
    "and one that meets a return probe ends the server"
)
#: A function that gets hotter after the trial may cost so many times the budget, over so long.
_BURST: Final = 2.0
_BURST_S: Final = 1.0


def run(target: Target, function: str, wanted: Wanted, *, progress: Progress, paced: Paced) -> Seen:
    """Trace it. ``progress`` is told what is going on; ``paced`` opens what watches the server's own pace.

    Ctrl-C ends it early, and so does the server's end: then ``Seen.error`` has it. Raises TooHot, NotHere,
    Ambiguous, and what loading, attaching and looking raise.
    """
    progress("looking for the function")
    chosen = choose(target, function)
    _check_argument(chosen, wanted)
    timed = wanted.latency and chosen.timed is not None
    with closing(Session(target, chosen, wanted, timed=timed)) as session, ExitStack() as stack:
        progress("measuring what a hit costs here")
        cost = costs.measure(session, chosen, timed=timed)
        session.forget()
        pace = stack.enter_context(paced()) if wanted.force else None
        before = pace.watch() if pace else {}
        tracer = Tracer(session, chosen, wanted, cost, timed=timed)
        seen = tracer.trace(progress, pace)
        if pace:
            seen.loss = tracer.loss(seen, before, pace)
        return seen


def _check_argument(chosen: Chosen, wanted: Wanted) -> None:
    partial = [place.symbol for place in chosen.places if is_partial(place.symbol)]
    if wanted.argument is not None and partial:
        raise NotHere(
            f"{', '.join(partial)}: the compiler changed its arguments, they are not those of the source",
            remedy="trace it without --arg, or one of its callers with it",
        )


class Tracer:
    """Carries one trace through."""

    def __init__(
        self, session: Session, chosen: Chosen, wanted: Wanted, cost: costs.Cost, *, timed: bool
    ) -> None:
        self._session, self._chosen, self._wanted, self._cost = session, chosen, wanted, cost
        self._timed = timed
        self._stacks = cost.stacks_a_second(wanted.budget) if wanted.callers else 0.0
        self._spent: deque[tuple[float, float]] = deque()
        self._during: dict[str, float] = {}
        self.callers = Callers(session.target, session.ring) if wanted.callers else None

    def trace(self, progress: Progress, pace: Pace | None) -> Seen:
        """On, watched, off. Raises TooHot, or what attaching raises."""
        if pace:
            pace.lap()
        if self._wanted.callers:
            self._session.sample(self._stacks)
        self._session.open()
        began = time.monotonic()
        seen = Seen(self._chosen, self._try(), self._cost)
        if self._wanted.latency and not self._timed:
            seen.notes.append(_UNTIMED)
        self._judge(seen)
        if self._timed:
            self._session.attach(on_return=True)
        try:
            self._watch(seen, began, progress)
        except KeyboardInterrupt:
            seen.ended = f"interrupted after {time.monotonic() - began:.1f} of {self._wanted.seconds:g} s"
        self._session.stop()
        seen.seconds = time.monotonic() - began
        self._during = pace.lap() if pace else {}
        progress("taking the probes off")
        self._session.detach()
        self._collect(seen)
        return seen

    def _try(self) -> Trial:
        """The first moments: attached, and looked at until it is known how often it is hit."""
        began = time.monotonic()
        self._session.attach()
        before, since = self._session.hits(), time.monotonic()
        while True:
            time.sleep(_LOOK_S)
            hits, now = self._session.hits() - before, time.monotonic()
            if hits >= _ENOUGH_HITS or now - since >= _TRIAL_S:
                return Trial(hits, now - since, began)

    def _judge(self, seen: Seen) -> None:
        """Goes on, if need be without a return probe, or takes the probes off and raises TooHot."""
        trial, budget = seen.trial, self._wanted.budget
        if self._wanted.force or self._fits(trial.rate, budget):
            return
        if self._timed:
            whole = self._cost.share(trial.rate)
            self._timed, self._cost = False, self._cost.without_return
            if self._fits(trial.rate, budget):
                seen.cost = self._cost
                seen.notes.append(
                    f"not how long calls take: with a return probe it would cost {whole:.1%} of the "
                    f"server's CPUs (budget {budget:.1%}; --budget or --force)"
                )
                return
        self._session.detach()
        raise refusal(self._chosen, self._wanted, self._cost, trial, time.monotonic() - trial.began)

    def _fits(self, rate: float, budget: float) -> bool:
        limit = self._chosen.limit
        return self._cost.share(rate, min(rate, self._stacks)) <= budget and not (limit and rate > limit)

    def _watch(self, seen: Seen, began: float, progress: Progress) -> None:
        last = began, self._session.hits()
        while (left := began + self._wanted.seconds - time.monotonic()) > 0:
            time.sleep(min(STRETCH_S, left))
            if not still_same(self._session.target):
                seen.error = gone(self._session.target.pid)
                seen.ended = f"the server ended after {time.monotonic() - began:.1f} s"
                return
            now = time.monotonic(), self._session.hits()
            self._take_stacks(last, now)
            if not self._wanted.force and (hot := self._hotter(*now)):
                seen.ended = f"it became too hot after {now[0] - began:.1f} s: {hot}"
                return
            last = now
            progress(f"{now[1]:,} calls; {max(0.0, left):.0f} s to go; Ctrl-C prints what was seen")

    def _take_stacks(self, last: tuple[float, int], now: tuple[float, int]) -> None:
        if self.callers is None:
            return
        self.callers.drain()
        self._session.sample(self._stacks, (now[1] - last[1]) / max(now[0] - last[0], 1e-9))

    def _hotter(self, now: float, hits: int) -> str | None:
        """Why it has to end; a trial sees a moment, and functions have their hours."""
        self._spent.append((now, hits))
        while now - self._spent[0][0] > _BURST_S and len(self._spent) > 1:
            self._spent.popleft()
        then, before = self._spent[0]
        rate = (hits - before) / max(now - then, _BURST_S)
        share = self._cost.share(rate, min(rate, self._stacks))
        if share <= _BURST * self._wanted.budget and not (self._chosen.limit and rate > self._chosen.limit):
            return None
        return (
            f"{rate:,.0f} calls a second, {share:.1%} of the server's CPUs (budget {self._wanted.budget:.1%})"
        )

    def _collect(self, seen: Seen) -> None:
        reading = self._session.read()
        seen.calls, seen.hits = reading.counter("calls"), reading.counter("hits")
        seen.latency = self._session.latency(reading) if self._timed else None
        seen.values = self._session.values(reading)
        if self.callers is not None:
            self.callers.drain()
            seen.stacks_taken = self.callers.taken
            seen.report = self.callers.report(text.headline(seen))
            seen.notes += seen.report.notes
            seen.stacks_held_back = reading.counter("stacks_held_back")
            seen.stacks_lost = reading.counter("stacks_lost")

    def loss(self, seen: Seen, before: dict[str, float], pace: Pace) -> Loss:
        """What it cost by hits, and what the server says itself."""
        return Loss(
            spent=seen.spent,
            seconds=seen.seconds,
            share=seen.spent / max(seen.seconds, 1e-9) / self._cost.cpus,
            before=before,
            during=self._during,
            why_no_sql=pace.why_no_sql,
        )


def refusal(chosen: Chosen, wanted: Wanted, cost: costs.Cost, trial: Trial, probed_s: float) -> TooHot:
    """The rate, what it would cost, and the way around."""
    share = cost.share(trial.rate)
    what = (
        f"{chosen.name} is too hot: at least {trial.rate:,.0f} calls a second, "
        f"{cost.call_s * 1e6:.1f} µs of the server's time each, would cost {share:.1%} of its "
        f"{cost.cpus:g} CPUs ({1e3 * trial.rate * cost.call_s:,.0f} ms/s); the budget is {wanted.budget:.1%}"
    )
    if cost.weight > 1:
        what += f", and others wait for each of its calls (they count {cost.weight} times)"
    ways = [f"it was probed for {1e3 * probed_s:.0f} ms to find out; nothing is left"]
    if chosen.why_hot:
        ways.append(f"why: {chosen.why_hot}")
    if chosen.instead:
        ways.append(f"instead: {chosen.instead}")
    ways.append(f"--force traces it all the same, for {FORCED_SECONDS:g} s, and tells what the server lost")
    return TooHot(what, remedy="\n".join(ways))
