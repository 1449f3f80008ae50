"""Measure a server's operations during a window, and compare arms with the control."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from bench.proc import cpu_seconds
from bench.tables import interval, percent
from bench.trials import CONTROL, Trial, Window, judge

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from servers import Server
    from workloads import Workload

#: Reported metrics of the pairs, with their titles.
_METRICS = {"per_second": "operations/s", "cpu_us_per_operation": "server CPU µs/operation"}

HEADER = ("metric", "pairs", "without", "with", "change (95 % interval)", "control (95 % interval)",
          "beyond the control (95 % interval)", "verdict")  # fmt: skip


def window(server: Server, load: Workload, seconds: float) -> Window:
    """Measure the load for ``seconds``."""
    return during(server, load, lambda: time.sleep(seconds))


def during(server: Server, load: Workload, wait: Callable[[], None]) -> Window:
    """Measure the load until ``wait`` returns."""
    began, ran, done = _reading(server, load)
    wait()
    ended, ran_then, done_then = _reading(server, load)
    operations = done_then - done
    return {
        "per_second": operations / (ended - began),
        "cpu_us_per_operation": (ran_then - ran) / operations * 1e6,
    }


def _reading(server: Server, load: Workload) -> tuple[float, float, int]:
    """Return the time, the server's CPU time, and the number of operations.

    Reading the number of operations takes a while, so each time is the average of two readings, one
    before it and one after it.
    """
    before = time.monotonic(), cpu_seconds(server.pid)
    done = load.throughput()
    after = time.monotonic(), cpu_seconds(server.pid)
    return (before[0] + after[0]) / 2, (before[1] + after[1]) / 2, done


def rows(trials: Sequence[Trial], arm: str) -> list[list[str]]:
    """Return one table row for each metric."""
    return [_row(trials, arm, metric) for metric in _METRICS]


def _row(trials: Sequence[Trial], arm: str, metric: str) -> list[str]:
    own, control = judge(trials, arm, metric), judge(trials, CONTROL, metric)
    return [
        _METRICS[metric], str(sum(trial.arm == arm for trial in trials)),
        f"{own.empty:,.1f}", f"{own.value:,.1f}",
        f"{percent(own.change)} {interval(*own.change_interval)}",
        f"{percent(control.change)} {interval(*control.change_interval)}",
        f"{percent(own.excess)} {interval(*own.excess_interval)}", own.words,
    ]  # fmt: skip
