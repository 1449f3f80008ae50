"""A FUSE file system that stops responding, like a network file system whose server is unreachable."""

from __future__ import annotations

import ctypes
import os
import select
import struct
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_GETATTR, _INIT = 3, 26
_ENOSYS = 38
_MNT_FORCE, _MNT_DETACH = 1, 2
_REQUEST = struct.Struct("<IIQQIIII")  # fuse_in_header in include/uapi/linux/fuse.h
_READ_BYTES = 1 << 17
_DIRECTORY = 0o040755


class HangingFiles:
    """A mounted file system: an empty directory owned by root. It responds until ``hang`` is called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._hangs = os.eventfd(0)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._device = -1
        self._thread = threading.Thread()

    def __enter__(self) -> HangingFiles:
        self._device = os.open("/dev/fuse", os.O_RDWR | os.O_NONBLOCK)
        options = f"fd={self._device},rootmode=40000,user_id=0,group_id=0,allow_other"
        where = os.fsencode(self.folder)
        if self._libc.mount(b"innoscope-test", where, b"fuse", 0, options.encode()):
            raise OSError(ctypes.get_errno(), "cannot mount FUSE")
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.hang()
        self._libc.umount2(os.fsencode(self.folder), _MNT_FORCE | _MNT_DETACH)
        os.close(self._device)
        os.close(self._hangs)

    def hang(self) -> None:
        """Stop responding: all requests wait until the block ends.

        Requests are not even read. A process that waits for a request that was read cannot be killed
        (request_wait_answer in fs/fuse/dev.c).
        """
        os.eventfd_write(self._hangs, 1)
        self._thread.join()

    def _serve(self) -> None:
        while True:
            ready, _, _ = select.select([self._device, self._hangs], [], [])
            if self._hangs in ready:
                return
            request = os.read(self._device, _READ_BYTES)
            _, code, unique, *_ = _REQUEST.unpack_from(request)
            answers = {_INIT: self._init, _GETATTR: self._attributes}
            body = answers[code]() if code in answers else b""
            error = 0 if code in answers else -_ENOSYS
            os.write(self._device, struct.pack("<IiQ", 16 + len(body), error, unique) + body)

    @staticmethod
    def _init() -> bytes:
        return struct.pack("<IIIIHHII", 7, 31, 0, 0, 0, 0, 1 << 16, 1).ljust(64, b"\0")

    @staticmethod
    def _attributes() -> bytes:
        """Return fuse_attr_out for the root directory, with a cache timeout of zero."""
        times = (0,) * 6
        attributes = struct.pack("<QQQQQQIIIIIIIIII", 1, 0, 0, *times, _DIRECTORY, 2, 0, 0, 0, 4096, 0)
        return struct.pack("<QII", 0, 0, 0) + attributes
