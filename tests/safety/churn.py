"""Run clients that connect to a server and disconnect immediately."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from servers import Keeper

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers import Server

CLIENTS = 4
#: Seconds after which the clients exit. The block ends them earlier, even on a busy host.
_LIMIT_S = 600


@contextmanager
def churn(server: Server) -> Iterator[None]:
    """Connect and disconnect with several clients, as fast as the server allows, until the block ends."""
    arguments = [str(server.socket), str(CLIENTS), "0", str(_LIMIT_S)]
    with Keeper() as keeper:
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("churn_main.py")), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        keeper.watch(process.pid)
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        yield
        process.kill()
        process.communicate()
