"""``access_attempts_main.py PID ADDRESS``: try all kinds of access to a process, and print the results.

Writes do not change the memory: they write the zeros that are already there.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_LIBC = ctypes.CDLL(None, use_errno=True)
_PTRACE_SEIZE = 0x4206
_PIDFD_GETFD = 438
_BYTES = 8


class _Piece(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def main() -> None:
    pid, address = map(int, sys.argv[1:])
    tried: dict[str, Callable[[], object]] = {
        "process_vm_readv": lambda: _vm(_LIBC.process_vm_readv, pid, address),
        "process_vm_writev": lambda: _vm(_LIBC.process_vm_writev, pid, address),
        "ptrace": lambda: _checked(_LIBC.ptrace(_PTRACE_SEIZE, pid, None, None)),
        "pidfd_getfd": lambda: _checked(_LIBC.syscall(_PIDFD_GETFD, os.pidfd_open(pid), 0, 0)),
        "kill": lambda: os.kill(pid, 0),
        "read mem": lambda: _open(pid, address, os.O_RDONLY),
        "write mem": lambda: _open(pid, address, os.O_WRONLY),
        "read map_files": lambda: next(Path(f"/proc/{pid}/map_files").iterdir()).open("rb").close(),
        "read io": Path(f"/proc/{pid}/io").read_bytes,
        "network": lambda: socket.socket().close(),
    }
    print(json.dumps({name: _outcome(attempt) for name, attempt in tried.items()}))


def _outcome(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "ok"


def _checked(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), "")


def _vm(call: Callable[..., int], pid: int, address: int) -> None:
    """Read eight bytes at ``address`` or write eight zeros there, depending on ``call``."""
    own = ctypes.create_string_buffer(_BYTES)
    here = _Piece(ctypes.addressof(own), _BYTES)
    there = _Piece(address, _BYTES)
    _checked(call(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0))


def _open(pid: int, address: int, mode: int) -> None:
    descriptor = os.open(f"/proc/{pid}/mem", mode)
    try:
        if mode == os.O_WRONLY:
            os.pwrite(descriptor, bytes(_BYTES), address)
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    main()
