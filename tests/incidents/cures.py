"""Apply a cure (a command that must end a stall), and measure the throughput before and after."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from servers import Server


@dataclass(frozen=True, slots=True)
class Cure:
    """Arguments for ``innoscope``, such as ``("toggle", "set", "read_ahead", "off", "--yes")``.

    ``counter`` is a variable of SHOW GLOBAL STATUS that counts the load's operations. Its rate is measured
    over ``seconds`` before and after the cure, and must be at least ``factor`` times as high afterwards.
    """

    arguments: tuple[str, ...]
    counter: str = "Questions"
    factor: float = 1.0
    seconds: float = 8.0


@dataclass(frozen=True, slots=True)
class Effect:
    """Operations per second before and after the cure, measured with the status variable ``counter``."""

    command: str
    counter: str
    before: float
    after: float


def measured(cure: Cure, server: Server, pid: int) -> Effect:
    """Measure the rate, apply the cure, and measure the rate again."""
    before = _rate(cure, server)
    innoscope = str(Path(sys.executable).with_name("innoscope"))
    command = [innoscope, *cure.arguments, "--pid", str(pid), "-u", "root"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    after = _rate(cure, server)
    return Effect(f"innoscope {' '.join(cure.arguments)}", cure.counter, before, after)


def _rate(cure: Cure, server: Server) -> float:
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        statement = f"SHOW GLOBAL STATUS LIKE '{cure.counter}'"

        def count() -> tuple[float, int]:
            cursor.execute(statement)
            return time.monotonic(), int(cursor.fetchone()[1])

        began, first = count()
        time.sleep(cure.seconds)
        ended, last = count()
        return (last - first) / (ended - began)
