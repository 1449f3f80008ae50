"""Connect to a server and disconnect immediately, in a loop.

Arguments: socket, clients, connections per second of all clients (0: no limit), maximum seconds.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import pymysql


def _come_and_go(path: str, every_s: float, until: float) -> None:
    due = time.monotonic()
    while due < until:
        connection: Any = pymysql.connect(unix_socket=path, user="root", ssl_disabled=True)
        connection.close()
        due = max(due + every_s, time.monotonic() - 1)  # after a delay, catch up at most one second
        time.sleep(max(0.0, due - time.monotonic()))


def main() -> None:
    """Run for the given seconds, or until standard input closes."""
    path, clients, rate, bound = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
    every_s = clients / rate if rate else 0.0
    until = time.monotonic() + bound
    for _ in range(clients):
        threading.Thread(target=_come_and_go, args=(path, every_s, until), daemon=True).start()
    print("begun", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
