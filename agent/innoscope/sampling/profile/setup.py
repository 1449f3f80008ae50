"""Prepare a profile: load the symbols of the process, and choose the size of the ring buffer."""

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
#: Size of a typical stack record in bytes, and the seconds of samples that the ring buffer should hold.
_RECORD_BYTES: Final = 22 << 10
_BUFFERED_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Naming:
    """Options for symbolising stacks.

    ``fetch`` downloads debug files for the mapped modules, and returns the files by build-id, and notes.
    """

    inlines: bool = False
    kernel: bool = False
    debug_dirs: tuple[str, ...] = ()
    fetch: Fetch | None = None


def ring_bytes(frequency: float) -> int:
    """Return the ring buffer size, a power of two, for this many samples per second and CPU."""
    wanted = frequency * (os.cpu_count() or 1) * _RECORD_BYTES * _BUFFERED_S
    size = _MIN_RING
    while size < min(wanted, _MAX_RING):
        size *= 2
    return size


def open_samples(target: Target, ring: int, naming: Naming) -> tuple[_native.Samples, tuple[str, ...]]:
    """Return the reader of the ring buffer, and notes on debug files that could not be fetched."""

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
