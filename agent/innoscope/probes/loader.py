"""Code into the kernel: descriptors of programs and maps, which live as long as somebody has them open."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from innoscope import _native
from innoscope.common.errors import InnoscopeError, KernelUnable, NoRights
from innoscope.probes import build_cache

if TYPE_CHECKING:
    from collections.abc import Sequence

    from innoscope.probes.object_file import Compiled


@dataclass(slots=True)
class Loaded:
    """Descriptors by name; ours to close."""

    programs: dict[str, int] = field(default_factory=dict)
    maps: dict[str, int] = field(default_factory=dict)

    def close(self) -> None:
        """Give up the programs and maps."""
        for descriptors in (self.programs, self.maps):
            while descriptors:
                os.close(descriptors.popitem()[1])


def compile_and_load(text: str, programs: Sequence[str], maps: Sequence[str]) -> Loaded:
    """Compile, unless that was done before, and load these programs (as uprobe programs) and all their maps.

    Raises BccMissing, NoRights (CAP_BPF and CAP_PERFMON, or root) or KernelUnable with the compiler's or
    verifier's words.
    """
    try:
        return load(build_cache.compiled(text, programs, maps))
    except KernelUnable:
        if not build_cache.forget(text, programs, maps):
            raise
        return load(build_cache.compiled(text, programs, maps))  # what was kept may be of another compiler


def load(compiled: Compiled) -> Loaded:
    """All of it. Raises NoRights or KernelUnable."""
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
        raise _explained(*error.args) from error
    except BaseException:
        loaded.close()
        raise
    return loaded


def _explained(kind: str, detail: str) -> InnoscopeError:
    if kind == "rights":
        return NoRights(f"no right to load probes: {detail}", remedy="run it as root")
    return KernelUnable(f"the probes cannot be loaded: {detail}", remedy="innoscope doctor")
