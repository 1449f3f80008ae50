"""Helper process: a warm engine on one server.

By itself, ``python -m bench.looker PID`` looks once a second until its input closes. Orders on its input:
``every S`` (from start to start), ``rest S`` (from the end of one look to the start of the next), ``pause``;
``burn S BUSY`` to compute for BUSY seconds instead of looking, with S seconds between; ``look N`` for N looks
at once; ``take`` for what was measured since the last ``take``. Each gets one line of JSON.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.children import answer, told
from innoscope._native import Process
from innoscope.sampling.classify import default_classifier
from innoscope.sampling.engine import Engine
from innoscope.target.discover import find_one

if TYPE_CHECKING:
    from collections.abc import Callable

    from innoscope._native import Look, ModuleInfo


class _Seen:
    """A process whose last look is kept, because a Dump does not say how long unwinding took."""

    def __init__(self, pid: int) -> None:
        self._process = Process(pid)
        self.method = self._process.method
        self.last: Look | None = None

    def look(self) -> Look:
        self.last = self._process.look()
        return self.last

    def modules(self) -> list[ModuleInfo]:
        return self._process.modules()


class _Eyes:
    """Looks and what each cost."""

    def __init__(self, pid: int) -> None:
        self._seen = _Seen(pid)
        self._engine = Engine.of(find_one(pid), self._seen, default_classifier())
        self.costs: list[dict[str, float | str]] = []

    def look(self) -> None:
        cpu, wall = time.process_time_ns(), time.perf_counter_ns()
        dump = self._engine.look()
        wall, cpu = time.perf_counter_ns() - wall, time.process_time_ns() - cpu
        assert self._seen.last is not None
        last = self._seen.last
        self.costs.append(
            {
                "method": dump.method,
                "threads": len(dump.threads),
                "wall_ms": wall / 1e6,
                "cpu_ms": cpu / 1e6,
                "copy_ms": last.copy_ns / 1e6,
                "unwind_ms": last.unwind_ns / 1e6,
                "symbolise_ms": last.symbolise_ns / 1e6,
                "retried": last.retried,
                "sampled": last.sampled,
            }
        )

    def take(self) -> list[dict[str, float | str]]:
        costs, self.costs = self.costs, []
        return costs


@dataclass(frozen=True, slots=True)
class _Plan:
    """What to do again and again."""

    act: Callable[[], None]
    interval: float
    rate: bool  #: the interval is from start to start, not from end to start

    def next(self, due: float) -> float:
        """When to do it again, having just done what was due then. A moment that was missed is left out."""
        now = time.monotonic()
        return max(due + self.interval, now) if self.rate else now + self.interval


def _burn(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def _plan(order: list[str], eyes: _Eyes) -> _Plan | None:
    match order:
        case ["every", interval]:
            return _Plan(eyes.look, float(interval), rate=True)
        case ["rest", interval]:
            return _Plan(eyes.look, float(interval), rate=False)
        case ["burn", interval, busy]:
            return _Plan(lambda: _burn(float(busy)), float(interval), rate=False)
        case ["pause"]:
            return None
    raise SystemExit(f"no such order: {' '.join(order)}")


def main() -> None:
    """Argument: the pid."""
    eyes = _Eyes(int(sys.argv[1]))
    eyes.look()
    answer("ready")
    plan: _Plan | None = _plan(["every", "1"], eyes)
    due = time.monotonic()
    while (order := told(None if plan is None else max(0.0, due - time.monotonic()))) is not None:
        match order:
            case []:
                assert plan is not None
                plan.act()
                due = plan.next(due)
            case ["look", count]:
                for _ in range(int(count)):
                    eyes.look()
                answer("looked")
            case ["take"]:
                answer(eyes.take())
            case _:
                plan, due = _plan(order, eyes), time.monotonic()
                answer("so be it")


if __name__ == "__main__":
    main()
