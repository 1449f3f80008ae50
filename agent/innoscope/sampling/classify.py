"""From a stack to a wait class. Which names mean what is data: ``probes/catalog/waits.yaml``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from innoscope.sampling.wait_catalog import Catalog, any_of, load

if TYPE_CHECKING:
    from innoscope.sampling.model import Frame
    from innoscope.sampling.wait_catalog import Rule

#: Suffixes that compilers add to function names.
_SUFFIX: Final = re.compile(
    r"(\.(isra|constprop|part|lto_priv|clone|cold|llvm)(\.\d+)*| \[clone [^]]*\]|@@?[A-Z]+[\w.]*|@plt)+$"
)
#: Classes of threads that have nothing to do: the text of stacks hides them, ``top`` on request.
IDLE: Final = frozenset({"idle", "background_idle"})
#: Classes that do not say in what the thread is: there the library's function does.
UNEXPLAINED: Final = frozenset({"on_cpu", "runnable", "other"})
#: Names of functions, and of files, that are remembered: those of all servers that this process has met.
_MOST_NAMES: Final = 65_536


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A rule ready to run. Sets hold the numbers of pattern lists; an absent condition is None."""

    wait: str
    running: bool | None
    needs: frozenset[int]  # pattern lists of which some frame must match
    leaf: int | None
    never: int | None
    syscalls: frozenset[str] | None
    files: frozenset[str] | None
    comm: re.Pattern[str] | None


def plain_name(function: str) -> str:
    """A function's name without what compilers and linkers add to it (``.isra.3``, ``@plt``)."""
    return _SUFFIX.sub("", function)


class Classifier:
    """Applies the rules of a catalog. Remembers, for each function name, which pattern lists it matches."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._lists: dict[tuple[str, ...], int] = {}
        self._patterns: list[re.Pattern[str]] = []  # by the number of their list
        self._names: dict[str, frozenset[int]] = {}
        self._library = any_of(catalog.libraries)
        self._libraries: dict[str, bool] = {}
        self._rules = [self._compile(rule) for rule in catalog.rules]

    def _compile(self, rule: Rule) -> _Compiled:
        state = self.catalog.state(rule)
        return _Compiled(
            wait=rule.wait,
            running=None if state is None else state == "running",
            needs=frozenset(self._list(patterns) for patterns in (rule.frames, rule.also) if patterns),
            leaf=self._list(rule.leaf) if rule.leaf else None,
            never=self._list(rule.never) if rule.never else None,
            syscalls=rule.syscalls or None,
            files=rule.files or None,
            comm=any_of(rule.comm) if rule.comm else None,
        )

    def _list(self, patterns: tuple[str, ...]) -> int:
        """Return the number of a pattern list, the same for equal lists."""
        if patterns not in self._lists:
            self._lists[patterns] = len(self._patterns)
            self._patterns.append(any_of(patterns))
        return self._lists[patterns]

    def _matches(self, function: str) -> frozenset[int]:
        """Return the numbers of the pattern lists that a function name matches."""
        known = self._names.get(function)
        if known is not None:
            return known
        if len(self._names) >= _MOST_NAMES:
            self._names.clear()
        name = plain_name(function)
        result = self._names[function] = frozenset(
            number for number, pattern in enumerate(self._patterns) if pattern.fullmatch(name)
        )
        return result

    def from_server(self, frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
        """Return the frames from the server's innermost own function on; all of them if there is none."""
        for number, frame in enumerate(frames):
            if not frame.kernel and not self.in_library(frame.module):
                return frames[number:]
        return frames

    def in_library(self, module: str) -> bool:
        """Return whether a file is one of the catalog's ``libraries``: the C library and the like."""
        known = self._libraries.get(module)
        if known is None:
            if len(self._libraries) >= _MOST_NAMES:
                self._libraries.clear()
            known = self._libraries[module] = self._library.fullmatch(module) is not None
        return known

    def _look_up(self, frames: tuple[Frame, ...]) -> tuple[set[int], set[int]]:
        """Pattern lists matched by any frame, and by those up to the server's innermost own function."""
        anywhere: set[int] = set()
        leaf: set[int] = set()
        in_leaf = True
        for frame in frames:
            matched = self._matches(frame.function) if frame.function else frozenset()
            anywhere |= matched
            if in_leaf and not frame.kernel:
                leaf |= matched
                in_leaf = self.in_library(frame.module)
        return anywhere, leaf

    def classify(
        self,
        frames: tuple[Frame, ...],
        *,
        comm: str = "",
        syscall: str | None = None,
        file: str | None = None,
        running: bool = False,
        stale: bool = False,
    ) -> str:
        """The wait class of one thread.

        ``syscall`` and ``file`` are names (descriptors.py). ``running`` is true for a thread on a CPU or
        ready for one; ``stale`` when its stack is that of an earlier moment, which proves no wait.
        """
        anywhere, leaf = self._look_up(frames)
        for rule in self._rules:
            if (rule.running is None and stale) or (rule.running is not None and rule.running != running):
                continue
            if (
                rule.needs <= anywhere
                and (rule.leaf is None or rule.leaf in leaf)
                and rule.never not in anywhere
            ):
                if rule.syscalls is not None and syscall not in rule.syscalls:
                    continue
                if rule.files is not None and file not in rule.files:
                    continue
                if rule.comm is not None and not rule.comm.fullmatch(comm):
                    continue
                return rule.wait
        return "on_cpu" if running else "other"


@cache
def default_classifier() -> Classifier:
    """The classifier of the installed catalog, built once."""
    return Classifier(load())


def label(wait: str) -> str:
    """The human name of a wait class; the id itself for one the catalog does not have."""
    known = default_classifier().catalog.classes.get(wait)
    return known.label if known else wait
