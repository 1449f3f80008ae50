"""``make run``: run an agent, and show the stacks of the host's server, or of a temporary one under load.

After the first snapshot, one per second is summarized in a line until Ctrl-C. Nothing is left behind.
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
from innoscope.sampling.fold import Filter, StackReport
from innoscope.sampling.render import render
from innoscope.sampling.render.words import headline
from innoscope.target import allowed_users
from innoscope.target.discover import find_one, scan
from innoscope.target.proc import ProcFs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.target.model import Target

#: The smallest download among the test servers with symbols.
_SERVER = "mysql-5.6.24"
_CLIENTS = 20
#: Seconds to wait for the agent. Its first snapshot is slow if the server has a lot of debug information.
_AGENT_S = 30


def main() -> int:
    """Run until Ctrl-C; return the exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with contextlib.ExitStack() as stack:
            here = list(scan(ProcFs(), allowed_users.load()).servers)
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
    """Start a temporary server with a small workload; return its pid."""
    from servers import Server
    from workloads import UpdateStorm

    print(f"run: no mysqld on this host: starting a temporary {_SERVER} with {_CLIENTS} clients", flush=True)
    server = stack.enter_context(Server(_SERVER))
    stack.enter_context(UpdateStorm(server, _CLIENTS))
    return server.pid


def _agent(stack: contextlib.ExitStack) -> int:
    """Start an agent with its sensor; return its port once it is ready."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="innoscope-")))
    folder.chmod(0o755)  # the agent drops root privileges
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
                f"the agent exited with {process.returncode}", remedy=" ".join(("sudo", *command))
            )
        if time.monotonic() > deadline:
            raise InnoscopeError(
                f"the agent is not ready after {_AGENT_S} s", remedy=f"curl {address}/-/ready"
            )
        time.sleep(0.1)
    return int(address.rpartition(":")[2])


def _scraped(stack: contextlib.ExitStack, port: int) -> None:
    """Start Prometheus alongside the temporary server, to show the metrics over time."""
    from prometheus import Prometheus

    print(
        "\nrun: starting a Prometheus that scrapes it (unpacked into the cache if none is installed)",
        flush=True,
    )
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="innoscope-prometheus-")))
    prometheus = stack.enter_context(Prometheus(folder, port))
    series = prometheus.value("scrape_samples_scraped")
    # Prometheus's web pages need packages that are not unpacked here, so show a query of its API.
    where = f"http://127.0.0.1:{prometheus.port}/api/v1/query?query=innoscope_threads"
    print(f"run: Prometheus has scraped {series:.0f} series, for example {where}", flush=True)


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Yield the agent's process and terminate it after the block. The agent then stops its sensor."""
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
    print(f"run: a snapshot of pid {target.pid}, {target.flavour} {target.version_text}; it is not stopped\n")
    report = _snapshot(Engine(target), target)
    print("\n".join(render(report, "text", by="stack", limit=20)), flush=True)
    for pid in others:
        print(f"\nrun: there is another server: .venv/bin/innoscope stacks --pid {pid}")


def _watch(target: Target, port: int) -> None:
    page = f"http://127.0.0.1:{port}"
    print(f"\nIn another terminal:  .venv/bin/innoscope stacks --pid {target.pid} --by wait")
    print(f"                      .venv/bin/innoscope top --pid {target.pid}")
    print("                      .venv/bin/innoscope probes list")
    print(f"In a browser:         {page}/   For Prometheus: {page}/metrics")
    print("One snapshot a second; Ctrl-C ends it.\n", flush=True)
    engine = Engine(target)
    while True:
        time.sleep(1)
        print(headline(_snapshot(engine, target)), flush=True)


def _snapshot(engine: Engine, target: Target) -> StackReport:
    report = StackReport(target, Filter())
    report.add(engine.take_snapshot())
    return report


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
