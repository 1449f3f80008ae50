"""Clients that connect and leave at once, in a process of their own.

Arguments: socket, clients, seconds at most.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import pymysql


def _come_and_go(path: str, until: float) -> None:
    while time.monotonic() < until:
        connection: Any = pymysql.connect(unix_socket=path, user="root", ssl_disabled=True)
        connection.close()


def main() -> None:
    """Until the time is over, or our standard input closes."""
    path, clients, bound = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    until = time.monotonic() + bound
    for _ in range(clients):
        threading.Thread(target=_come_and_go, args=(path, until), daemon=True).start()
    print("begun", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
