"""Compare the methods that copy stacks without stopping anything: ``python -m bench methods``.

The methods copy the stacks of the same busy server one after another. Their copies of a stack must agree if
the thread did not run between the first copy and the last. The effect on the server is measured in pairs of
windows.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from bench import pairs
from bench.helper_process import Helper
from bench.scene import busy, crowded, say
from bench.tables import table
from bench.trials import CONTROL, Trial, alternate
from innoscope._native import Process
from snapshot_methods import STOPPING_NOTHING
from workloads import UpdateStorm

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.settings import Settings
    from bench.trials import Window
    from innoscope._native import Frame, RawSnapshot
    from servers import Server
    from workloads import Cpu

_BEST = STOPPING_NOTHING[0]
_EXACT, _INFERRED = "exact", "inferred"
_UNMOVED = frozenset({_EXACT, _INFERRED})


@dataclass
class Compared:
    """The results of one method. Thread counts are totals over all snapshots, by trust level."""

    wall_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    trust: Counter[str] = field(default_factory=Counter)
    #: Threads whose stack equals the exact copy that ``_BEST`` made, and threads whose stack differs.
    agrees: Counter[str] = field(default_factory=Counter)
    differs: Counter[str] = field(default_factory=Counter)


def run(name: str, settings: Settings) -> dict[str, Any]:
    """Compare the stacks under a storm of updates, then measure the effect on single-row reads."""
    with crowded(name, settings.connections, mixed=True) as server:
        with UpdateStorm(server, settings.storm_clients):
            compared = _compare(name, server.pid, settings.method_rounds)
        with busy(server, max(1, settings.load)) as load, ExitStack() as stack:
            assert load is not None
            helpers = {
                method: stack.enter_context(Helper("snapshot_process", str(server.pid), method))
                for method in STOPPING_NOTHING
            }
            for helper in helpers.values():
                helper.command("pause")
            trials = alternate(
                (CONTROL, *helpers),
                settings.pair_rounds,
                _window(server, load, helpers, settings.pair_window),
                lambda number: say(f"{name}: pair {number + 1} of {settings.pair_rounds}"),
            )
    return {
        "compared": {method: vars(one) for method, one in compared.items()},
        "window_s": settings.pair_window,
        "trials": [asdict(one) for one in trials],
    }


def _compare(name: str, pid: int, rounds: int) -> dict[str, Compared]:
    """Take one snapshot with each method in each round, in rotating order, and compare the stacks."""
    processes = {method: Process(pid, method=method) for method in STOPPING_NOTHING}
    results = {method: Compared() for method in processes}
    for process in processes.values():
        process.take_snapshot()
    order = list(processes)
    for number in range(rounds):
        if number % 50 == 0:
            say(f"{name}: comparison {number + 1} of {rounds}")
        order.append(order.pop(0))
        before = _times_run(pid)
        taken = {method: _measured(processes[method], results[method]) for method in order}
        after = _times_run(pid)
        at_rest = {tid for tid, times in before.items() if after.get(tid) == times}
        best = _stacks(taken[_BEST], at_rest)
        truth = {tid: stack for tid, (trust, stack) in best.items() if trust == _EXACT}
        for method, snapshot in taken.items():
            results[method].trust.update(thread.trust for thread in snapshot.threads)
            for tid, (trust, stack) in _stacks(snapshot, at_rest).items():
                if tid in truth:
                    result = results[method]
                    counts = result.agrees if truth[tid] == stack else result.differs
                    counts[trust] += 1
    return results


def _measured(process: Process, result: Compared) -> RawSnapshot:
    cpu, wall = time.process_time_ns(), time.perf_counter_ns()
    snapshot = process.take_snapshot()
    result.wall_ms.append((time.perf_counter_ns() - wall) / 1e6)
    result.cpu_ms.append((time.process_time_ns() - cpu) / 1e6)
    return snapshot


def _stacks(snapshot: RawSnapshot, tids: set[int]) -> dict[int, tuple[str, tuple[Frame, ...]]]:
    """Return ``{tid: (trust, frames)}`` of the threads in ``tids`` that did not run during the copy."""
    return {
        thread.tid: (thread.trust, snapshot.stacks[thread.stack])
        for thread in snapshot.threads
        if thread.trust in _UNMOVED and thread.tid in tids
    }


def _times_run(pid: int) -> dict[int, int]:
    """Return how many times each thread was scheduled onto a CPU: the third field of schedstat."""
    times = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            times[int(task.name)] = int((task / "schedstat").read_text().split()[2])
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread has exited
    return times


def _window(server: Server, load: Cpu, helpers: dict[str, Helper], seconds: float) -> Callable[[str], Window]:
    def window(arm: str) -> Window:
        if arm == CONTROL:
            return pairs.window(server, load, seconds)
        helpers[arm].command("every 1")
        seen = pairs.window(server, load, seconds)
        helpers[arm].command("pause")
        return seen

    return window


_COMPARED = ("server", "method", "snapshots", "ms: median", "p99", "CPU ms", "exact", "inferred", "on_cpu",
             "others", "exact compared", "agree", "inferred compared", "wrong")  # fmt: skip
_PAIRS = ("server", "method", *pairs.HEADER)


def report(results: dict[str, Any]) -> str:
    """Return two tables: the comparison of the stacks, and the effect on the server."""
    lost = [
        [name, method, *row]
        for name, result in results.items()
        for method in STOPPING_NOTHING
        for row in pairs.rows([Trial(**trial) for trial in result["trials"]], method)
    ]
    return "\n\n".join(
        [
            "The stacks, and what a snapshot costs:",
            comparison(results),
            "The effect on the server:",
            table(_PAIRS, lost),
        ]
    )


def comparison(results: dict[str, Any]) -> str:
    """Return the table of the stacks: durations, trust levels, and the share of stacks that agree."""
    rows = [
        _row(name, method, Compared(**one))
        for name, result in results.items()
        for method, one in result["compared"].items()
    ]
    return table(_COMPARED, rows)


def _row(name: str, method: str, one: Compared) -> list[str]:
    trust, agrees, differs = Counter(one.trust), Counter(one.agrees), Counter(one.differs)
    wall_ms, cpu_ms = one.wall_ms, one.cpu_ms
    shares = [trust[level] / trust.total() for level in (_EXACT, _INFERRED, "on_cpu")]
    return [
        name, method, str(len(wall_ms)),
        f"{median(wall_ms):.1f}", f"{quantiles(wall_ms, n=100)[98]:.1f}", f"{median(cpu_ms):.1f}",
        *(f"{100 * share:.2f} %" for share in (*shares, max(0.0, 1 - sum(shares)))),
        *_compared(agrees[_EXACT], agrees[_EXACT] + differs[_EXACT]),
        *_compared(differs[_INFERRED], agrees[_INFERRED] + differs[_INFERRED]),
    ]  # fmt: skip


def _compared(part: int, whole: int) -> tuple[str, str]:
    """Return the number of compared stacks, and the percentage of them that ``part`` is."""
    return f"{whole:,}", f"{100 * part / whole:.3f} %" if whole else "–"
