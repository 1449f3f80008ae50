"""The layout of glibc's thread descriptor, ``struct pthread``, to which a pthread_t points (nptl/descr.h)."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Descriptor:
    """Offsets in a thread descriptor, in bytes."""

    tid: int
    #: The range that contains ``tid`` if its offset differs in some version of glibc.
    tids: range
    #: Offsets of the pointers to the descriptor itself.
    own: tuple[int, ...] = ()


#: The layout on each machine. Two pointers, which link all descriptors, precede ``tid``. Before them, x86-64
#: has a tcbhead_t of 0x2C0 bytes, which contains the self pointers. arm64 has its tcbhead_t elsewhere, and 24
#: unused pointers here. On x86-64, ``tid`` is at the same offset in glibc 2.17 to 2.42.
_DESCRIPTORS: Final = {
    "x86_64": Descriptor(tid=0x2D0, tids=range(0x200, 0x400, 4), own=(0, 16)),
    "aarch64": Descriptor(tid=0xD0, tids=range(0xC0, 0x200, 4)),
}


def descriptor(machine: str | None = None) -> Descriptor:
    """Return the layout on a machine, by default this one."""
    return _DESCRIPTORS.get(machine or platform.machine(), _DESCRIPTORS["x86_64"])
