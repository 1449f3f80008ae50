"""``make run``: the first stack dump of the server on this host, or of a throw-away one with a workload.

Then it goes on looking once a second until Ctrl-C, which leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from typing import TYPE_CHECKING, NoReturn

from innoscope.errors import InnoscopeError
from innoscope.stacks.engine import Engine
from innoscope.stacks.fold import Filter, Report
from innoscope.stacks.render import render
from innoscope.stacks.render.words import headline
from innoscope.target.discover import find_one, server_pids
from innoscope.target.proc import ProcFs

if TYPE_CHECKING:
    from innoscope.target.model import Target

#: With symbols, and the smallest of those to fetch.
_SERVER = "mysql-5.6.24"
_CLIENTS = 20


def main() -> int:
    """Dump, then watch. Exit code 0 after Ctrl-C."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with contextlib.ExitStack() as stack:
            pids = server_pids(ProcFs()) or [_throw_away(stack)]
            target = find_one(pid=pids[0])
            _watch(target, others=pids[1:])
    except KeyboardInterrupt:
        print("\nstopped; nothing was left behind")
    except InnoscopeError as error:
        print(f"run: {error.what}\n  {error.remedy or ''}", file=sys.stderr)
        return error.exit_code
    return 0


def _throw_away(stack: contextlib.ExitStack) -> int:
    """The pid of a server of our own that is busy with a small workload."""
    from servers import Server
    from workloads import UpdateStorm

    print(f"run: no mysqld on this host: starting a throw-away {_SERVER} with {_CLIENTS} clients", flush=True)
    server = stack.enter_context(Server(_SERVER))
    stack.enter_context(UpdateStorm(server, _CLIENTS))
    return server.pid


def _watch(target: Target, others: list[int]) -> None:
    engine = Engine(target)
    print(f"run: looking at pid {target.pid}, {target.flavour} {target.version_text}; not stopping it\n")
    report = _look(engine, target)
    print("\n".join(render(report, "text", by="stack", limit=20)))
    for pid in others:
        print(f"\nrun: there is another server: .venv/bin/innoscope stacks --pid {pid}")
    print(f"\nIn another terminal:  .venv/bin/innoscope stacks --pid {target.pid} --by wait")
    print(f"                      .venv/bin/innoscope top --pid {target.pid}")
    print("Looking once a second; Ctrl-C ends it.\n", flush=True)
    while True:
        time.sleep(1)
        print(headline(_look(engine, target)), flush=True)


def _look(engine: Engine, target: Target) -> Report:
    report = Report(target, Filter())
    report.add(engine.look())
    return report


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
