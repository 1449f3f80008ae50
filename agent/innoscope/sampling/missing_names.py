"""Report server functions without symbols, and the command that installs the symbols."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from innoscope.target.symbols.advice import COMPLETE, remedy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from innoscope._native import ModuleInfo
    from innoscope.sampling.model import Frame
    from innoscope.target.model import Target

#: Minimum share of frames without symbols for a note.
SHARE: Final = 0.02


def missing_names(
    target: Target, modules: Callable[[], list[ModuleInfo]], stacks: Iterable[tuple[Frame, ...]]
) -> tuple[str, ...]:
    """Return a note if functions of the server's executable have no symbols, else an empty tuple.

    ``modules`` is called only if enough symbols are missing. Libraries are not considered.
    """
    total: Counter[str] = Counter()
    unnamed: Counter[str] = Counter()
    for frames in stacks:
        for frame in frames:
            total[frame.module] += 1
            unnamed[frame.module] += frame.function is None
    main = Path(target.executable).name
    missing, of = unnamed[main], total[main]
    if not missing or missing < of * SHARE:
        return ()
    info = next((module for module in modules() if Path(module.path).name == main), None)
    if info and info.symbols_from in COMPLETE and not info.problem:
        # This source is complete, so no other would help: the frames lie in code without symbols.
        return ()
    share = f"{100 * missing / of:.0f} % of {main}'s frames"
    return (f"{share} are shown without names ({_why(info)}); {remedy(target)}",)


def _why(info: ModuleInfo | None) -> str:
    if info is None:
        return "the file is no longer mapped"
    if info.problem:
        return info.problem
    return {
        "dynsym": "stripped: only exported functions are known",
        "debugdata": "only .gnu_debugdata is available",
        "none": "stripped: no symbols at all",
    }.get(info.symbols_from, info.symbols_from)
