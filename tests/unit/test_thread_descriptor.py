"""Test the layout of glibc's thread descriptor on this machine."""

from __future__ import annotations

import ctypes
import threading

from innoscope.memory.thread_descriptor import descriptor


def test_descriptor_of_this_thread_has_its_id_and_points_to_itself() -> None:
    libc = ctypes.CDLL(None)
    libc.pthread_self.restype = ctypes.c_void_p
    start: int = libc.pthread_self()
    layout = descriptor()

    assert ctypes.c_int.from_address(start + layout.tid).value == threading.get_native_id()
    assert layout.tid in layout.tids
    assert all(ctypes.c_void_p.from_address(start + at).value == start for at in layout.own)


def test_each_machine_has_its_layout() -> None:
    assert descriptor("x86_64").tid != descriptor("aarch64").tid
