"""What a change of one setting costs a client that asks without pause: ``python -m bench toggle``.

The arms: nothing (control), a change and its undo by SQL and by memory, all that a change by memory does but
the write, and the one-liner for gdb that people use.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.alternating import CONTROL, Trial, Window, alternate, judge
from bench.children import Child, ChildError
from bench.command import measured
from bench.scene import busy, crowded, say
from bench.stats import histogram_quantile, median_interval
from bench.tables import interval, percent, table
from servers import ensure_packages
from workloads import LatencyProbe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bench.command import Run
    from bench.settings import Settings
    from servers import Server

SQL, MEMORY, PLAN = "sql", "memory", "memory, planned only"
ONE_LINER = "gdb one-liner"
_ARMS = (CONTROL, SQL, MEMORY, PLAN, ONE_LINER)
#: What is changed: the toggle, the server's variable, and its symbol.
_TOGGLE, _VARIABLE, _SYMBOL = "spin_rounds", "innodb_sync_spin_loops", "srv_n_spin_wait_rounds"
_INNOSCOPE = str(Path(sys.executable).with_name("innoscope"))
#: Seconds for an answer that is still due at the end of a window.
_DUE = 0.1


class _Stage:
    """One server, its main thread watched and its answers timed, and a journal for nobody else."""

    def __init__(self, server: Server, watcher: Child, probe: LatencyProbe, folder: Path) -> None:
        self._server = server
        self._watcher = watcher
        self._probe = probe
        self._folder = folder
        self._before = self._now()
        self._deeds: Mapping[str, Callable[[], Window]] = {
            CONTROL: dict,
            SQL: lambda: self._set_and_undo(SQL),
            MEMORY: lambda: self._set_and_undo(MEMORY),
            PLAN: lambda: {"set_s": self._innoscope("plan", *self._new, "--way", MEMORY).wall_s},
            ONE_LINER: self._one_liner,
        }

    def window(self, arm: str, seconds: float) -> Window:
        """Do it, and watch for so many seconds or until it is done."""
        self._watcher.ask("take")
        self._probe.take()
        ends = time.monotonic() + seconds
        done = self._deeds[arm]()
        time.sleep(max(_DUE, ends - time.monotonic()))
        gaps = self._probe.take()
        return {
            "longest_ms": gaps.longest_us / 1000,
            "p99_ms": histogram_quantile(gaps.histogram, 0.99) / 1000,
            "p50_ms": histogram_quantile(gaps.histogram, 0.5) / 1000,
            "answers": gaps.count,
            "stopped_ms": self._watcher.ask("take"),
            **done,
        }

    @property
    def _new(self) -> tuple[str, str]:
        return _TOGGLE, str(self._before + 1)

    def _set_and_undo(self, way: str) -> Window:
        changed = self._innoscope("set", *self._new, "--way", way, "--yes")
        self._must_be(self._before + 1)
        undone = self._innoscope("undo", _TOGGLE)
        self._must_be(self._before)
        return {"set_s": changed.wall_s, "undo_s": undone.wall_s}

    def _innoscope(self, *words: str) -> Run:
        """The command as a DBA would type it."""
        places = {"INNOSCOPE_STATE": str(self._folder), "INNOSCOPE_RUN": str(self._folder)}
        return measured([_INNOSCOPE, "toggle", *words, "--pid", str(self._server.pid)], places)

    def _one_liner(self) -> Window:
        """gdb ended in the middle leaves the server stopped: then it is woken."""
        command = [
            "gdb",
            "-p",
            str(self._server.pid),
            "-batch",
            "-ex",
            f"set var {_SYMBOL}={self._before + 1}",
        ]
        try:
            run = measured(command, {"DEBUGINFOD_URLS": "", "LC_ALL": "C.UTF-8"})
        except BaseException:
            os.kill(self._server.pid, signal.SIGCONT)
            raise
        self._must_be(self._before + 1)
        self._ask(f"SET GLOBAL {_VARIABLE} = {self._before}")
        return {"set_s": run.wall_s}

    def _must_be(self, value: int) -> None:
        found = self._now()
        if found != value:
            raise ChildError(f"{_VARIABLE} is {found}, not {value}: it was not changed")

    def _now(self) -> int:
        return int(self._ask(f"SELECT @@global.{_VARIABLE}")[0])

    def _ask(self, statement: str) -> Any:
        with closing(self._server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchone()


def run(name: str, settings: Settings) -> dict[str, Any]:
    """One server: windows that alternate."""
    ensure_packages(["gdb"])
    with (
        tempfile.TemporaryDirectory(prefix="innoscope-bench-") as folder,
        crowded(name, settings.connections, mixed=True) as server,
        busy(server, settings.toggle_load),
        Child("watcher", str(server.pid)) as watcher,
        LatencyProbe(server, realtime=True) as probe,
    ):
        stage = _Stage(server, watcher, probe, Path(folder))
        trials = alternate(
            _ARMS,
            settings.toggle_rounds,
            lambda arm: stage.window(arm, settings.toggle_window),
            lambda number: say(f"{name}: round {number + 1} of {settings.toggle_rounds}"),
        )
    return {
        "clients": settings.toggle_load,
        "window_s": settings.toggle_window,
        "trials": [asdict(trial) for trial in trials],
    }


def report(results: dict[str, Any]) -> str:
    """Two tables: what the client felt, and what was done meanwhile."""
    trials = {name: [Trial(**trial) for trial in result["trials"]] for name, result in results.items()}
    return "\n\n".join(
        [
            "What the client felt.",
            table(_FELT, [_felt(name, of, arm) for name, of in trials.items() for arm in _ARMS]),
            "What was done meanwhile: medians (the largest).",
            table(_DONE, [_done(name, of, arm) for name, of in trials.items() for arm in _ARMS]),
        ]
    )


_FELT = ("server", "arm", "windows", "longest gap ms, without", "with (95 % interval)", "the largest",
         "beyond the control (95 % interval)", "verdict", "p99 ms, without", "with")  # fmt: skip
_DONE = ("server", "arm", "command s", "undo s", "main thread stopped ms", "longest gap ms")


def _felt(name: str, trials: list[Trial], arm: str) -> list[str]:
    gaps = [trial.during["longest_ms"] for trial in trials if trial.arm == arm]
    longest, p99 = judge(trials, arm, "longest_ms"), judge(trials, arm, "p99_ms")
    low, high = median_interval(gaps)
    beyond, words = f"{percent(longest.excess)} {interval(*longest.excess_interval)}", longest.words
    if arm == CONTROL:
        beyond = words = "–"
    return [
        name, arm, str(len(gaps)), f"{longest.empty:.3g}", f"{longest.value:.3g} [{low:.3g}, {high:.3g}]",
        f"{max(gaps):.3g}", beyond, words, f"{p99.empty:.3g}", f"{p99.value:.3g}",
    ]  # fmt: skip


def _done(name: str, trials: list[Trial], arm: str) -> list[str]:
    windows = [trial.during for trial in trials if trial.arm == arm]

    def middle(key: str, form: str) -> str:
        values = [window[key] for window in windows if key in window]
        return f"{form.format(median(values))} ({form.format(max(values))})" if values else "–"

    return [
        name, arm, middle("set_s", "{:.2f}"), middle("undo_s", "{:.2f}"), middle("stopped_ms", "{:.0f}"),
        middle("longest_ms", "{:.1f}"),
    ]  # fmt: skip
