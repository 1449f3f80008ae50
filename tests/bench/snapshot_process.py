"""Helper process: take snapshots of one server with a snapshot engine that is already warmed up.

Without commands, ``python -m bench.snapshot_process PID METHOD`` takes one snapshot per second until its
input closes. Each reply is one line of JSON. Commands:

- ``every S``, ``rest S``: take snapshots at intervals of S seconds, measured from start to start, or from end
  to start.
- ``burn S BUSY``: take no snapshots, but use BUSY seconds of CPU time, with pauses of S seconds.
- ``pause``: stop taking snapshots or using CPU time.
- ``snapshots N``: take N snapshots without a pause.
- ``take``: return the measurements since the last ``take``.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.helper_process import next_command, reply
from innoscope._native import Process
from innoscope.sampling.classify import default_classifier
from innoscope.sampling.engine import Engine
from innoscope.target.discover import find_one

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from innoscope._native import ModuleInfo, RawSnapshot


class _Process:
    """Wrapper of ``Process`` that keeps the last raw snapshot. Only raw ones contain the unwinding time."""

    def __init__(self, pid: int, method: str) -> None:
        self._process = Process(pid, method=method)
        self.method = self._process.method
        self.last: RawSnapshot | None = None

    def take_snapshot(self) -> RawSnapshot:
        self.last = self._process.take_snapshot()
        return self.last

    def run_counts(self, tids: Sequence[int]) -> dict[int, int]:
        return self._process.run_counts(tids)

    def copied_run_counts(self, tids: Sequence[int]) -> dict[int, int]:
        return self._process.copied_run_counts(tids)

    def modules(self) -> list[ModuleInfo]:
        return self._process.modules()


class _Snapshots:
    """The snapshots of one process, with the cost of each."""

    def __init__(self, pid: int, method: str) -> None:
        self._process = _Process(pid, method)
        self._engine = Engine.of(find_one(pid), self._process, default_classifier())
        self.costs: list[dict[str, float | str]] = []

    def take_one(self) -> None:
        cpu, wall = time.process_time_ns(), time.perf_counter_ns()
        snapshot = self._engine.take_snapshot()
        wall, cpu = time.perf_counter_ns() - wall, time.process_time_ns() - cpu
        assert self._process.last is not None
        last = self._process.last
        self.costs.append(
            {
                "method": snapshot.method,
                "threads": len(snapshot.threads),
                "wall_ms": wall / 1e6,
                "cpu_ms": cpu / 1e6,
                "copy_ms": last.copy_ns / 1e6,
                "unwind_ms": last.unwind_ns / 1e6,
                "symbolize_ms": last.symbolize_ns / 1e6,
                "retried": last.retried,
                "sampled": last.sampled,
            }
        )

    def take(self) -> list[dict[str, float | str]]:
        costs, self.costs = self.costs, []
        return costs


@dataclass(frozen=True, slots=True)
class _Plan:
    """An action, and the interval in seconds at which it is repeated."""

    act: Callable[[], None]
    interval: float
    rate: bool  #: the interval is from start to start, not from end to start

    def next(self, due: float) -> float:
        """Return the time of the next action; missed actions are skipped."""
        now = time.monotonic()
        return max(due + self.interval, now) if self.rate else now + self.interval


def _burn(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def _plan(command: list[str], snapshots: _Snapshots) -> _Plan | None:
    match command:
        case ["every", interval]:
            return _Plan(snapshots.take_one, float(interval), rate=True)
        case ["rest", interval]:
            return _Plan(snapshots.take_one, float(interval), rate=False)
        case ["burn", interval, busy]:
            return _Plan(lambda: _burn(float(busy)), float(interval), rate=False)
        case ["pause"]:
            return None
    raise SystemExit(f"no such command: {' '.join(command)}")


def main() -> None:
    """Execute commands; the arguments are the server's pid and the method."""
    snapshots = _Snapshots(int(sys.argv[1]), sys.argv[2])
    snapshots.take_one()
    reply("ready")
    plan: _Plan | None = _plan(["every", "1"], snapshots)
    due = time.monotonic()
    while (command := next_command(None if plan is None else max(0.0, due - time.monotonic()))) is not None:
        match command:
            case []:
                assert plan is not None
                plan.act()
                due = plan.next(due)
            case ["snapshots", count]:
                for _ in range(int(count)):
                    snapshots.take_one()
                reply("done")
            case ["take"]:
                reply(snapshots.take())
            case _:
                plan, due = _plan(command, snapshots), time.monotonic()
                reply("done")


if __name__ == "__main__":
    main()
