"""Short windows that alternate: with nothing, with something, with nothing, with something else, …

On a small shared machine two windows of the same thing differ by a fifth. So each window with something is
compared with the mean of the two empty ones around it, which share its drift; one of the somethings is the
control, which is empty too; and what counts is how far the others go beyond the control. Changes are
logarithms (and the means geometric), so that twice as much and half as much weigh the same.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from bench.stats import excess_interval, median_interval

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Window = dict[str, float]

#: The arm in which nothing happens, like in the windows around it.
CONTROL = "control"


@dataclass(frozen=True, slots=True)
class Trial:
    """One window and the empty ones before and after it."""

    arm: str
    before: Window
    during: Window
    after: Window

    def change(self, metric: str) -> float:
        """The logarithm of the ratio to the empty windows."""
        around = self.before[metric] * self.after[metric]
        return math.log(self.during[metric]) - math.log(around) / 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """One metric of one arm: the median relative change, and how far it goes beyond the control."""

    value: float  #: median of the windows themselves
    empty: float  #: median of the empty windows around them
    change: float
    change_interval: tuple[float, float]
    excess: float
    excess_interval: tuple[float, float]

    @property
    def words(self) -> str:
        """Whether the control's own spread explains it."""
        low, high = self.excess_interval
        return "within the control's spread" if low <= 0 <= high else "beyond the control's spread"


def alternate(
    arms: Sequence[str],
    rounds: int,
    window: Callable[[str], Window],
    progress: Callable[[int], None],
    around: Callable[[], Window] | None = None,
) -> list[Trial]:
    """Every arm once a round, in an order that changes; ``window(CONTROL)`` is an empty one.

    So are those around them, unless ``around`` makes these, where they are to be shorter: a machine's speed
    drifts, and what is nearer tells it better.
    """
    empty = around or (lambda: window(CONTROL))
    generator = random.Random(1)  # noqa: S311
    trials = []
    before = empty()
    for number in range(rounds):
        progress(number)
        for arm in generator.sample(arms, len(arms)):
            during, after = window(arm), empty()
            trials.append(Trial(arm, before, during, after))
            before = after
    return trials


def judge(trials: Sequence[Trial], arm: str, metric: str) -> Verdict:
    """The arm against the control."""
    own = [trial for trial in trials if trial.arm == arm]
    changes = [trial.change(metric) for trial in own]
    control = [trial.change(metric) for trial in trials if trial.arm == CONTROL]
    return Verdict(
        value=median(trial.during[metric] for trial in own),
        empty=median(window[metric] for trial in own for window in (trial.before, trial.after)),
        change=math.expm1(median(changes)),
        change_interval=_relative(median_interval(changes)),
        excess=math.expm1(median(changes) - median(control)),
        excess_interval=_relative(excess_interval(changes, control)),
    )


def _relative(bounds: tuple[float, float]) -> tuple[float, float]:
    low, high = bounds
    return math.expm1(low), math.expm1(high)
