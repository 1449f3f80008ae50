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

_LOOKUP, _GETATTR, _OPEN, _INIT = 1, 3, 14, 26
_ENOSYS = 38
_MNT_FORCE, _MNT_DETACH = 1, 2
_REQUEST = struct.Struct("<IIQQIIII")  # fuse_in_header in include/uapi/linux/fuse.h
_READ_BYTES = 1 << 17
_DIRECTORY, _FILE = 0o040755, 0o100644
_ROOT_NODE, _FILE_NODE = 1, 2
#: Size of each file in bytes.
_FILE_BYTES = 1 << 20


class HangingFiles:
    """A mounted file system: a directory owned by root, in which every name is a file of 1 MiB.

    It responds until ``hang`` is called; the content of files cannot be read before that either.
    """

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
            _, code, unique, node, *_ = _REQUEST.unpack_from(request)
            body = self._response(code, node)
            error = -_ENOSYS if body is None else 0
            body = body or b""
            os.write(self._device, struct.pack("<IiQ", 16 + len(body), error, unique) + body)

    def _response(self, code: int, node: int) -> bytes | None:
        """Return the response to a request, or None if this kind of request is not supported."""
        if code == _INIT:
            return struct.pack("<IIIIHHII", 7, 31, 0, 0, 0, 0, 1 << 16, 1).ljust(64, b"\0")
        if code == _LOOKUP:
            return self._entry()
        if code == _GETATTR:
            return struct.pack("<QII", 0, 0, 0) + self._attributes(node)
        if code == _OPEN:
            return struct.pack("<QII", 0, 0, 0)
        return None

    def _entry(self) -> bytes:
        """Return fuse_entry_out for a file, with cache timeouts of zero."""
        return struct.pack("<QQQQII", _FILE_NODE, 0, 0, 0, 0, 0) + self._attributes(_FILE_NODE)

    @staticmethod
    def _attributes(node: int) -> bytes:
        """Return fuse_attr for the root directory or for a file."""
        mode, size, links = (_DIRECTORY, 0, 2) if node == _ROOT_NODE else (_FILE, _FILE_BYTES, 1)
        times = (0,) * 6
        return struct.pack("<QQQQQQIIIIIIIIII", node, size, 0, *times, mode, links, 0, 0, 0, 4096, 0)
