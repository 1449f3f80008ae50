"""Measure in short windows that alternate: empty, active, empty, active, …

On a small shared machine, two equal windows can differ by a fifth. So each active window is compared with the
mean of the two empty windows around it, which are subject to the same drift. One arm is the control, whose
active windows are also empty. The result of any other arm is its difference from the control. Changes are
log ratios, and means are geometric, so that doubling and halving have the same weight.
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

#: The name of the control arm, whose windows are measured in the same way as the empty ones around them.
CONTROL = "control"


@dataclass(frozen=True, slots=True)
class Trial:
    """One window and the empty ones before and after it."""

    arm: str
    before: Window
    during: Window
    after: Window

    def change(self, metric: str) -> float:
        """Return ln(x / m): x is the metric, and m its geometric mean in the two empty windows around it."""
        around = self.before[metric] * self.after[metric]
        return math.log(self.during[metric]) - math.log(around) / 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """One metric of one arm: the median relative change, and its difference from the control."""

    value: float  #: median of the arm's windows
    empty: float  #: median of the empty windows around the arm's windows
    change: float
    change_interval: tuple[float, float]
    excess: float
    excess_interval: tuple[float, float]

    @property
    def words(self) -> str:
        """Return a phrase that states whether the change is within the control's spread."""
        low, high = self.excess_interval
        return "within the control's spread" if low <= 0 <= high else "beyond the control's spread"


def alternate(
    arms: Sequence[str],
    rounds: int,
    window: Callable[[str], Window],
    progress: Callable[[int], None],
    around: Callable[[], Window] | None = None,
) -> list[Trial]:
    """Run every arm once per round, in random order; ``window(CONTROL)`` is an empty window.

    The empty windows between two arms are measured by ``window`` too, or by ``around`` if given.
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
    """Compare an arm with the control."""
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
