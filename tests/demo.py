"""``make run``: a first stack dump of the server here (or a throw-away one with a load), and the agent.

Then it goes on looking once a second until Ctrl-C, which leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from innoscope.common.errors import InnoscopeError
from innoscope.sampling.engine import Engine
from innoscope.sampling.fold import Filter, Report
from innoscope.sampling.render import render
from innoscope.sampling.render.words import headline
from innoscope.target import ownership
from innoscope.target.discover import find_one, scan
from innoscope.target.proc import ProcFs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.target.model import Target

#: With symbols, and the smallest of those to fetch.
_SERVER = "mysql-5.6.24"
_CLIENTS = 20
#: Seconds until the agent answers; its first look at a server with much debug info takes some.
_AGENT_S = 30


def main() -> int:
    """Dump, then watch. Exit code 0 after Ctrl-C."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with contextlib.ExitStack() as stack:
            here = list(scan(ProcFs(), ownership.load()).servers)
            pids = here or [_throw_away(stack)]
            target = find_one(pid=pids[0])
            port = _agent(stack)
            _first_dump(target, others=pids[1:])
            if not here:
                _scraped(stack, port)
            _watch(target, port)
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


def _agent(stack: contextlib.ExitStack) -> int:
    """The port of an agent with a sensor of its own, once it is ready."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="innoscope-")))
    folder.chmod(0o755)  # the agent gives up root
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [
        str(Path(sys.executable).with_name("innoscope")), "agent", "--web.listen-address", address,
        "--sensor-socket", str(folder / "sensor.sock"), "--log-level", "warning",
    ]  # fmt: skip
    print("run: starting the agent and its sensor", flush=True)
    process = stack.enter_context(_ended(subprocess.Popen(command, start_new_session=True)))
    deadline = time.monotonic() + _AGENT_S
    while not _is_ready(address):
        if process.poll() is not None:
            raise InnoscopeError(
                f"the agent ended with {process.returncode}", remedy=" ".join(("sudo", *command))
            )
        if time.monotonic() > deadline:
            raise InnoscopeError(
                f"the agent is not ready after {_AGENT_S} s", remedy=f"curl {address}/-/ready"
            )
        time.sleep(0.1)
    return int(address.rpartition(":")[2])


def _scraped(stack: contextlib.ExitStack, port: int) -> None:
    """Beside a server of our own, a Prometheus of our own too: to see the metrics over time."""
    from prometheus import Prometheus

    print(
        "\nrun: starting a Prometheus that scrapes it (unpacked into the cache if none is installed)",
        flush=True,
    )
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="innoscope-prometheus-")))
    prometheus = stack.enter_context(Prometheus(folder, port))
    series = prometheus.value("scrape_samples_scraped")
    # Its own pages need more packages than we unpack; what it knows is there for whoever asks.
    where = f"http://127.0.0.1:{prometheus.port}/api/v1/query?query=innoscope_threads"
    print(f"run: Prometheus has scraped {series:.0f} series, for example {where}", flush=True)


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """It ends the sensor that it started."""
    try:
        yield process
    finally:
        process.terminate()
        process.wait(10)


def _is_ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/-/ready", timeout=1):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _first_dump(target: Target, others: list[int]) -> None:
    print(f"run: looking at pid {target.pid}, {target.flavour} {target.version_text}; not stopping it\n")
    report = _look(Engine(target), target)
    print("\n".join(render(report, "text", by="stack", limit=20)), flush=True)
    for pid in others:
        print(f"\nrun: there is another server: .venv/bin/innoscope stacks --pid {pid}")


def _watch(target: Target, port: int) -> None:
    page = f"http://127.0.0.1:{port}"
    print(f"\nIn another terminal:  .venv/bin/innoscope stacks --pid {target.pid} --by wait")
    print(f"                      .venv/bin/innoscope top --pid {target.pid}")
    print("                      .venv/bin/innoscope probes list")
    print(f"In a browser:         {page}/   For Prometheus: {page}/metrics")
    print("Looking once a second; Ctrl-C ends it.\n", flush=True)
    engine = Engine(target)
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
