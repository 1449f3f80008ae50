"""The child of ``compiling``: ``python -m innoscope.probes.compiler SOCKET``, the order on standard input."""

from __future__ import annotations

import errno
import json
import socket
import sys
from typing import Any

from innoscope.probes.compiling import send


def main() -> int:
    """Compile and load; what went wrong is told over the socket."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    order = json.load(sys.stdin)
    try:
        import bcc
    except ImportError as error:
        send(channel, {"error": str(error), "kind": "missing"}, [])
        return 1
    try:
        made = bcc.BPF(text=order["text"], cflags=["-Wno-macro-redefined"])
        programs = [made.load_func(name, bcc.BPF.KPROBE).fd for name in order["programs"]]
        maps = [made[name].map_fd for name in order["maps"]]
    except Exception as error:
        send(channel, {"error": str(error), "kind": _kind(error)}, [])
        return 1
    send(channel, {}, [*programs, *maps])
    return 0


def _kind(error: Any) -> str:
    text = str(error)
    if getattr(error, "errno", None) in (errno.EPERM, errno.EACCES) or "Operation not permitted" in text:
        return "rights"
    return "failed"


if __name__ == "__main__":
    sys.exit(main())
