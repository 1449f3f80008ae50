"""Measure the CPU time that statements add to a snapshot: ``python -m bench statements``.

Snapshots with and without statements alternate. In the first scene, all connections are idle. In the others,
a tenth of them are busy: they either wait in the same statements all the time, or execute short statements
that differ in each snapshot.
"""

from __future__ import annotations

from contextlib import ExitStack
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.helper_process import Helper
from bench.scene import say
from bench.tables import table
from servers import Server
from workloads import Idle, RowLock, Sleep, UpdateStorm

if TYPE_CHECKING:
    from bench.settings import Settings
    from workloads import Workload

Record = dict[str, float]

_HEADER = ("server", "busy connections", "statements", "snapshot, CPU ms", "with statements", "more")


def run(name: str, settings: Settings) -> dict[str, list[Record]]:
    """Measure without busy connections, with waiting connections, and with changing statements."""
    busy = settings.connections // 10
    scenes: dict[str, tuple[type[Workload], ...]] = {
        "idle": (),
        "waiting": (Sleep, RowLock),
        "changing": (UpdateStorm,),
    }
    results = {}
    with Server(name) as server, Idle(server, settings.connections - busy):
        for scene, loads in scenes.items():
            say(f"{name}: {scene}")
            with ExitStack() as stack:
                for load in loads or (Idle,):
                    stack.enter_context(load(server, busy // max(1, len(loads))))
                with Helper("statements_process", str(server.pid)) as helper:
                    results[scene] = helper.command(f"take {settings.statement_rounds}")
    return results


def report(results: dict[str, Any]) -> str:
    """Return a table: the additional CPU time of statements, in each scene."""
    rows = [_row(name, *scene) for name, result in results.items() for scene in result.items()]
    return table(_HEADER, rows)


def _row(name: str, scene: str, records: list[Record]) -> list[str]:
    without, with_statements = ([one[key] for one in records] for key in ("without", "with"))
    return [
        name, scene, f"{median(one['statements'] for one in records):.0f}",
        f"{median(without):.1f}", f"{median(with_statements):.1f}",
        f"{median(with_statements) - median(without):.1f}",
    ]  # fmt: skip
