"""The process of ``workloads.probe``: send ``DO 1`` continuously, and print the gaps when requested."""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pymysql

if TYPE_CHECKING:
    import socket

#: A COM_QUERY packet: three bytes of length, sequence number 0, the command, the statement.
_QUERY = b"\x05\x00\x00\x00\x03DO 1"


class Meter:
    """The times between consecutive replies of the server.

    The thread that reads standard input sets ``wanted`` to request a report. The client prints the report
    before its next query.
    """

    def __init__(self) -> None:
        self.wanted = False
        self.window = _window()

    def add(self, gap_us: int) -> None:
        """Count one gap."""
        window = self.window
        shift = max(0, gap_us.bit_length() - 4)
        edge = gap_us >> shift << shift
        histogram = window["histogram"]
        histogram[edge] = histogram.get(edge, 0) + 1
        if gap_us > window["longest_us"]:
            window["longest_us"], window["longest_at"] = gap_us, time.time()

    def take(self) -> dict[str, Any]:
        """Return the gaps since the last call."""
        window, self.window, self.wanted = self.window, _window(), False
        window["seconds"] = time.monotonic() - window.pop("began")
        window["count"] = sum(window["histogram"].values())
        return window


def _window() -> dict[str, Any]:
    return {"began": time.monotonic(), "longest_us": 0, "longest_at": 0.0, "histogram": {}}


def _listen(meter: Meter) -> None:
    for _ in sys.stdin:
        meter.wanted = True


def _measure(wire: socket.socket, meter: Meter, until: float) -> None:
    """Send queries and count the gaps. A gap lasts from one reply to the next, so every delay is counted."""
    before = time.perf_counter_ns()
    while time.monotonic() < until:
        wire.sendall(_QUERY)
        reply = wire.recv(512)
        if len(reply) < 5 or reply[4] != 0:
            raise SystemExit(f"expected OK, got {reply!r}")
        now = time.perf_counter_ns()
        meter.add((now - before) // 1000)
        before = now
        if meter.wanted:  # checked after the reply, so that the gap that has just ended is included
            print(json.dumps(meter.take()), flush=True)


def main() -> None:
    """Run the client. Arguments: socket, 1 for a real-time client, maximum seconds."""
    path, realtime, bound = sys.argv[1], sys.argv[2] == "1", int(sys.argv[3])
    if realtime:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    connection: Any = pymysql.connect(unix_socket=path, user="root", ssl_disabled=True)
    gc.disable()
    meter = Meter()
    threading.Thread(target=_listen, args=(meter,), daemon=True).start()
    print("begun", flush=True)
    _measure(connection._sock, meter, time.monotonic() + bound)


if __name__ == "__main__":
    main()
