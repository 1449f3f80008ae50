"""Clients that keep a server busy: sysbench, because Python would take the CPU that is to be measured."""

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

#: Seconds after which the clients end by themselves, whatever happens to us.
_BOUND = 3600

#: Seconds that a client may take for its last statement before it is killed.
_STOP = 2


class Clients:
    """``count`` connections that repeat ``statements`` without pause; ``$R`` is a number up to ``rows``."""

    def __init__(
        self, server: Server, count: int, database: str, statements: Sequence[str], rows: int = 1
    ) -> None:
        ensure_commands("sysbench")
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in __exit__
        command = [
            "sysbench",
            str(_SCRIPT),
            f"--threads={count}",
            f"--time={_BOUND}",
            "--events=0",
            f"--mysql-socket={server.socket}",
            "--mysql-user=root",
            f"--mysql-db={database}",
            f"--statements={';'.join(statements)}",
            f"--rows={rows}",
            "run",
        ]
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
        """The one process that all clients are threads of."""
        return self._process.pid

    def check(self) -> None:
        """Fail, with what they said, if the clients have given up."""
        if self._process.poll() is not None:
            self._output.seek(0)
            raise WorkloadError(f"sysbench ended with {self._process.returncode}:\n{self._output.read()}")
