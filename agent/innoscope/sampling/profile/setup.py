"""Prepare a profile: load the symbols of the process, and choose the sizes of the ring buffers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from innoscope import _native
from innoscope.sampling import descriptors
from innoscope.target.native_errors import translating

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeAlias

    from innoscope._native import ModuleInfo
    from innoscope.target.model import Target

    Fetch: TypeAlias = Callable[[Callable[[], list[ModuleInfo]]], tuple[Mapping[str, str], tuple[str, ...]]]

_MIN_RING: Final = 4 << 20
_MAX_RING: Final = 64 << 20
#: Typical size of a stack record in bytes.
_RECORD_BYTES: Final = 22 << 10
#: Seconds of samples that the ring buffer should hold.
_BUFFERED_S: Final = 0.25
#: Size in bytes of each perf event record, which always contains 60 KB of stack.
_PERF_RECORD_BYTES: Final = 62 << 10
#: Without CAP_IPC_LOCK, the kernel's default limit per CPU (perf_event_mlock_kb) is this plus a header page.
_MIN_PERF_RING: Final = 512 << 10


@dataclass(frozen=True, slots=True)
class Naming:
    """Options for symbolizing stacks.

    ``fetch`` downloads debug files for the mapped modules. It returns the files by build-id, and notes.
    """

    inlines: bool = False
    kernel: bool = False
    debug_dirs: tuple[str, ...] = ()
    fetch: Fetch | None = None


def ring_bytes(frequency: float) -> int:
    """Return the ring buffer size in bytes (a power of two) for ``frequency`` samples per second and CPU."""
    return _power_of_two(frequency * (os.cpu_count() or 1) * _RECORD_BYTES, _MIN_RING, _MAX_RING)


def perf_ring_bytes(frequency: float, cpus: int) -> int:
    """Return the maximum size in bytes (a power of two) of each CPU's ring buffer for perf events."""
    return _power_of_two(frequency * _PERF_RECORD_BYTES, _MIN_PERF_RING, _MAX_RING // cpus)


def _power_of_two(bytes_per_s: float, least: int, most: int) -> int:
    """Return a buffer size for ``_BUFFERED_S`` seconds of records: at least ``least``, at most ``most``."""
    size = least
    while size < bytes_per_s * _BUFFERED_S and 2 * size <= most:
        size *= 2
    return size


def open_samples(target: Target, ring: int | None, naming: Naming) -> tuple[_native.Samples, tuple[str, ...]]:
    """Return a reader of ``ring`` (of perf events if it is None), and notes on failed downloads."""

    def build(files: Mapping[str, str]) -> _native.Samples:
        return _native.Samples(
            target.pid,
            ring,
            debug_dirs=(*naming.debug_dirs, "/usr/lib/debug"),
            debug_files=files,
            inlines=naming.inlines,
            kernel=naming.kernel,
            file_calls=sorted(descriptors.file_calls()),
        )

    with translating(target.pid):
        samples = build({})
        files, notes = naming.fetch(samples.modules) if naming.fetch else ({}, ())
        return (build(files) if files else samples), notes
