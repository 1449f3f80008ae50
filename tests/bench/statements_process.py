"""Helper process: take pairs of snapshots of one server, the first without and the second with statements.

``python -m bench.statements_process PID`` replies to ``take N`` with the CPU time of N pairs of snapshots.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from bench.helper_process import next_command, reply
from innoscope.memory.statements.attribution import Attribution
from innoscope.sampling.engine import Engine
from innoscope.target.discover import find_one

if TYPE_CHECKING:
    from innoscope.sampling.snapshot_series import SnapshotSource

#: Seconds between snapshots, in which the clients continue.
_PAUSE_S = 0.1


def _cpu_ms(source: SnapshotSource) -> tuple[float, int]:
    """Return the CPU time of one snapshot in ms, and its number of statements."""
    time.sleep(_PAUSE_S)
    began = time.process_time_ns()
    snapshot = source.take_snapshot()
    spent = time.process_time_ns() - began
    return spent / 1e6, sum(thread.query is not None for thread in snapshot.threads)


def main() -> None:
    """Execute commands; the argument is the server's pid."""
    target = find_one(int(sys.argv[1]))
    engine = Engine(target)
    attribution = Attribution(target, engine, most_bytes=0)
    attribution.take_snapshot()
    reply("ready")
    while command := next_command(None):
        records = []
        for _ in range(int(command[1])):
            without, _ = _cpu_ms(engine)
            with_statements, statements = _cpu_ms(attribution)
            records.append({"without": without, "with": with_statements, "statements": statements})
        reply(records)


if __name__ == "__main__":
    main()
