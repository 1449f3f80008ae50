"""Query a server whose result never ends, and print the cost (seconds, bytes of memory) and the error."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace

from innoscope.common.errors import InnoscopeError
from innoscope.target import sql
from innoscope.target.proc import ProcFs
from unit.snapshots import target


def peak() -> int:
    """Return the peak memory in bytes from VmHWM; ru_maxrss would include the parent's."""
    return int(ProcFs().status(os.getpid())["VmHWM"].split()[0]) << 10


def main() -> None:
    pid, path, file = int(sys.argv[1]), *sys.argv[2:]
    server = replace(target(), pid=pid, start_time=ProcFs().stat(pid).start_time, socket=path, port=None)
    connection = sql.connect(server, file)
    before = peak()
    began = time.monotonic()
    try:
        sql.rows(connection, "SHOW GLOBAL STATUS")
        error = ""
    except InnoscopeError as caught:
        error = caught.what
    seconds = time.monotonic() - began
    print(json.dumps({"seconds": seconds, "bytes": peak() - before, "error": error}))


if __name__ == "__main__":
    main()
