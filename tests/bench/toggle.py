"""Measure how a change to one setting affects a client that queries continuously: ``python -m bench toggle``.

The arms are: no change (the control); set and undo with the sql backend; set and undo with the memory
backend; a dry run (``toggle plan``) with the memory backend; and a gdb one-liner, whose change is undone over
SQL.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.command import measured
from bench.helper_process import Helper, HelperError
from bench.scene import busy, crowded, say
from bench.stats import gap_times, median_interval
from bench.tables import interval, percent, table
from bench.trials import CONTROL, Trial, Window, alternate, judge
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
#: The setting to change: its toggle, system variable and symbol.
_TOGGLE, _VARIABLE, _SYMBOL = "spin_rounds", "innodb_sync_spin_loops", "srv_n_spin_wait_rounds"
_INNOSCOPE = str(Path(sys.executable).with_name("innoscope"))
#: Seconds to wait for a reply that is still outstanding at the end of a window.
_DUE = 0.1


class _Stage:
    """One server, helpers that measure its stops and reply times, and a separate journal."""

    def __init__(self, server: Server, stops: Helper, probe: LatencyProbe, folder: Path) -> None:
        self._server = server
        self._stops = stops
        self._probe = probe
        self._folder = folder
        self._before = self._now()
        self._actions: Mapping[str, Callable[[], Window]] = {
            CONTROL: dict,
            SQL: lambda: self._set_and_undo(SQL),
            MEMORY: lambda: self._set_and_undo(MEMORY),
            PLAN: lambda: {"set_s": self._innoscope("plan", *self._new, "--backend", MEMORY).wall_s},
            ONE_LINER: self._one_liner,
        }

    def window(self, arm: str, seconds: float) -> Window:
        """Run the arm's action. Measure for ``seconds``, or until the action is done if it takes longer."""
        self._stops.command("take")
        self._probe.take()
        ends = time.monotonic() + seconds
        done = self._actions[arm]()
        time.sleep(max(_DUE, ends - time.monotonic()))
        gaps = self._probe.take()
        return {
            **gap_times(gaps),
            "stopped_ms": self._stops.command("take"),
            **done,
        }

    @property
    def _new(self) -> tuple[str, str]:
        return _TOGGLE, str(self._before + 1)

    def _set_and_undo(self, backend: str) -> Window:
        changed = self._innoscope("set", *self._new, "--backend", backend, "--yes")
        self._must_be(self._before + 1)
        undone = self._innoscope("undo", _TOGGLE)
        self._must_be(self._before)
        return {"set_s": changed.wall_s, "undo_s": undone.wall_s}

    def _innoscope(self, *words: str) -> Run:
        """Run the command as a DBA would type it."""
        places = {"INNOSCOPE_STATE": str(self._folder), "INNOSCOPE_RUN": str(self._folder)}
        return measured([_INNOSCOPE, "toggle", *words, "--pid", str(self._server.pid)], places)

    def _one_liner(self) -> Window:
        """Change the variable with gdb. If gdb is killed, resume the server that it left stopped."""
        assignment = f"set var {_SYMBOL}={self._before + 1}"
        command = ["gdb", "-p", str(self._server.pid), "-batch", "-ex", assignment]
        try:
            run = measured(command, {"DEBUGINFOD_URLS": "", "LC_ALL": "C.UTF-8"})
        except BaseException:
            os.kill(self._server.pid, signal.SIGCONT)
            raise
        self._must_be(self._before + 1)
        self._server.sql(f"SET GLOBAL {_VARIABLE} = {self._before}")
        return {"set_s": run.wall_s}

    def _must_be(self, value: int) -> None:
        found = self._now()
        if found != value:
            raise HelperError(f"{_VARIABLE} is {found}, not {value}: it was not changed")

    def _now(self) -> int:
        return int(self._server.sql(f"SELECT @@global.{_VARIABLE}")[0][0])


def run(name: str, settings: Settings) -> dict[str, Any]:
    """Measure one server in alternating windows."""
    ensure_packages(["gdb"])
    with (
        tempfile.TemporaryDirectory(prefix="innoscope-bench-") as folder,
        crowded(name, settings.connections, mixed=True) as server,
        busy(server, settings.toggle_load),
        Helper("stop_process", str(server.pid)) as stops,
        LatencyProbe(server, realtime=True) as probe,
    ):
        stage = _Stage(server, stops, probe, Path(folder))
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
    """Return two tables: the client's reply times, and the commands' duration and effect."""
    trials = {name: [Trial(**trial) for trial in result["trials"]] for name, result in results.items()}
    return "\n\n".join(
        [
            "The client's reply times.",
            table(_FELT, [_felt(name, of, arm) for name, of in trials.items() for arm in _ARMS]),
            "The commands: medians (maximum).",
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
