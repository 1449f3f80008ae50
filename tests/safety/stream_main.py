"""Ask a server that answers without end, and print what that took: seconds, bytes of memory, the error."""

from __future__ import annotations

import json
import resource
import sys
import time
from dataclasses import replace

from innoscope.errors import InnoscopeError
from innoscope.target import sql
from innoscope.target.proc import ProcFs
from unit.dumps import target


def main() -> None:
    pid, path, file = int(sys.argv[1]), *sys.argv[2:]
    server = replace(target(), pid=pid, start_time=ProcFs().stat(pid).start_time, socket=path, port=None)
    connection = sql.connect(server, file)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    try:
        sql.rows(connection, "SHOW GLOBAL STATUS")
        error = ""
    except InnoscopeError as caught:
        error = caught.what
    seconds = time.monotonic() - began
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps({"seconds": seconds, "bytes": grown << 10, "error": error}))


if __name__ == "__main__":
    main()
