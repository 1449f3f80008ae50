"""Preparing the core for a profile: the process's symbols, the size of the ring buffer."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from innoscope import _native
from innoscope.sampling import descriptors
from innoscope.sampling import missing_names as advice
from innoscope.target.native_errors import translating

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import TypeAlias

    from innoscope._native import ModuleInfo
    from innoscope.sampling.model import Frame
    from innoscope.target.model import Target

    Fetch: TypeAlias = Callable[[Callable[[], list[ModuleInfo]]], tuple[Mapping[str, str], tuple[str, ...]]]

_LEAST_RING: Final = 4 << 20
_MOST_RING: Final = 64 << 20
#: What a stack takes in the ring, most of them; and seconds for which there is room.
_RECORD_BYTES: Final = 22 << 10
_ROOM_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Naming:
    """How stacks get their names. ``fetch`` gives debug files by build-id for what is mapped, and notes."""

    inlines: bool = False
    kernel: bool = False
    debug_dirs: tuple[str, ...] = ()
    fetch: Fetch | None = None


def ring_bytes(frequency: float) -> int:
    """Room for so many samples a second of each CPU: a power of two."""
    wanted = frequency * (os.cpu_count() or 1) * _RECORD_BYTES * _ROOM_S
    size = _LEAST_RING
    while size < min(wanted, _MOST_RING):
        size *= 2
    return size


def open_samples(target: Target, ring: int, naming: Naming) -> tuple[_native.Samples, tuple[str, ...]]:
    """The reader of that ring, and notes on debug files that were fetched."""

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


def missing_names(
    target: Target, samples: _native.Samples, stacks: Iterable[tuple[Frame, ...]]
) -> tuple[str, ...]:
    """Notes on functions without names, with the remedy."""
    return advice.missing_names(target, samples.modules, stacks)
