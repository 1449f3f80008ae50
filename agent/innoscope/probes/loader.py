"""Load BPF programs and maps, which the kernel keeps while their descriptors are open."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from innoscope import _native
from innoscope.common.errors import InnoscopeError, KernelUnable, NoRights
from innoscope.probes import build_cache
from innoscope.target.native_errors import NativeFailure, failure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from innoscope.probes.object_file import Compiled


@dataclass(slots=True)
class Loaded:
    """Open descriptors by name. The owner must call ``close``."""

    programs: dict[str, int] = field(default_factory=dict)
    maps: dict[str, int] = field(default_factory=dict)

    def close(self) -> None:
        """Close the programs and maps."""
        for descriptors in (self.programs, self.maps):
            while descriptors:
                os.close(descriptors.popitem()[1])


def compile_and_load(text: str, programs: Sequence[str], maps: Sequence[str]) -> Loaded:
    """Compile ``programs`` unless they are cached, and load them as uprobe programs, with their maps.

    Raise BccMissing if bcc is not installed, NoRights without CAP_BPF and CAP_PERFMON (or root), or
    KernelUnable with the message of the compiler or verifier if one of them rejects the programs.
    """
    try:
        return load(build_cache.compile_cached(text, programs, maps))
    except KernelUnable:
        if not build_cache.discard(text, programs, maps):
            raise
        return load(build_cache.compile_cached(text, programs, maps))  # the cached code may be outdated


def load(compiled: Compiled) -> Loaded:
    """Load compiled programs and their maps.

    Raise NoRights if we lack the privileges, or KernelUnable if the kernel rejects the programs or maps for
    another reason.
    """
    loaded = Loaded()
    try:
        for one in compiled.maps:
            loaded.maps[one.name] = _native.create_map(
                one.name, one.kind, one.key_bytes, one.value_bytes, one.entries, one.flags
            )
        maps = list(loaded.maps.values())
        for name, code in compiled.programs.items():
            loaded.programs[name] = _native.load_uprobe_program(name, code, maps)
    except _native.NativeError as error:
        loaded.close()
        raise _explain(failure(error)) from error
    except BaseException:
        loaded.close()
        raise
    return loaded


def _explain(found: NativeFailure) -> InnoscopeError:
    if found.kind == "rights":
        return NoRights(f"cannot load probes: permission denied: {found.detail}", remedy="run it as root")
    return KernelUnable(f"cannot load the probes: {found.detail}", remedy="innoscope doctor")
