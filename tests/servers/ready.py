"""Wait until a server accepts connections, exits, or exceeds a timeout."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pymysql

from servers.errors import ServerError, tail

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from pymysql.connections import Connection

#: Seconds between two attempts to connect.
_POLL = 0.02


def wait_ready(
    process: subprocess.Popen[bytes], connect: Callable[[], Connection[Any]], log: Path, timeout: float
) -> None:
    """Return once a connection succeeds. If the server exits or is too slow, fail with the end of its log."""
    deadline = time.monotonic() + timeout
    while True:
        code = process.poll()
        if code is not None:
            raise ServerError(f"the server exited with {code} while starting:\n{tail(log)}")
        try:
            connect().close()
        except (pymysql.err.MySQLError, OSError) as error:
            if time.monotonic() > deadline:
                raise ServerError(f"no answer within {timeout:.0f} s ({error}):\n{tail(log)}") from error
        else:
            return
        time.sleep(_POLL)
