"""Keep a server busy with sysbench, because clients in Python would use too much CPU time."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from servers import Keeper, ensure_commands
from workloads.base import WorkloadError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from servers import Server

_SCRIPT = Path(__file__).with_name("client.lua")

#: Seconds after which the clients exit by themselves.
_BOUND = 3600

#: Maximum seconds to wait for sysbench to exit after SIGTERM. It is then killed.
_STOP = 2


def repeating(statements: Sequence[str], rows: int = 1) -> list[str]:
    """Return the script that repeats the statements, with its options; ``$R`` is a number up to ``rows``."""
    return [str(_SCRIPT), f"--statements={';'.join(statements)}", f"--rows={rows}"]


def _sysbench(server: Server, database: str, *arguments: str) -> list[str]:
    connection = [f"--mysql-socket={server.socket}", "--mysql-user=root", f"--mysql-db={database}"]
    return ["sysbench", *connection, *arguments]


def prepare(server: Server, database: str, script: Sequence[str]) -> None:
    """Create the tables of a sysbench script."""
    ensure_commands("sysbench")
    done = subprocess.run(
        _sysbench(server, database, *script, "prepare"), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise WorkloadError(f"sysbench prepare exited with {done.returncode}:\n{done.stdout}{done.stderr}")


class Clients:
    """Context manager: ``count`` connections that repeat a sysbench script until the block ends."""

    def __init__(self, server: Server, count: int, database: str, script: Sequence[str]) -> None:
        ensure_commands("sysbench")
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in __exit__
        bounds = [f"--threads={count}", f"--time={_BOUND}", "--events=0"]
        command = _sysbench(server, database, *script, *bounds, "run")
        self._keeper = Keeper()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            start_new_session=True,
        )
        self._keeper.watch(self._process.pid)

    def __enter__(self) -> Clients:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(_STOP)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._keeper.close()
        self._output.close()

    @property
    def pid(self) -> int:
        """Return the pid of the process whose threads are the clients."""
        return self._process.pid

    def check(self) -> None:
        """Raise WorkloadError, with the clients' output, if the clients have exited."""
        if self._process.poll() is not None:
            self._output.seek(0)
            raise WorkloadError(f"sysbench exited with {self._process.returncode}:\n{self._output.read()}")
