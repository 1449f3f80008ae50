"""Tell what a thread is for, by the root of its stack and its name: threads.yaml has the names."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, Literal, get_args

from innoscope.common.data import catalog_path
from innoscope.common.schema import Entry, read_yaml
from innoscope.sampling.classify import plain_name
from innoscope.sampling.wait_catalog import any_of, check_patterns

if TYPE_CHECKING:
    import re
    from pathlib import Path

    from innoscope.sampling.model import Frame

#: The values of the label ``group`` of mysqld_cpu_seconds.
_KindName = Literal[
    "connection", "page_cleaner", "master", "io", "purge", "redo", "replication", "background", "other"
]
KINDS: Final[tuple[str, ...]] = get_args(_KindName)
#: Names of functions of which the kind is remembered: those of all servers that this process has met.
_MOST_KNOWN: Final = 65_536


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind, and whether it is sure: one that is not gives way to what the thread was seen to be before."""

    name: str
    sure: bool


_OTHER: Final = Kind("other", False)
_POOL: Final = Kind("background", False)


class Names(Entry, frozen=True):
    """The functions and the thread names of one kind, as patterns."""

    frames: tuple[str, ...]
    comm: tuple[str, ...]

    def __post_init__(self) -> None:
        """Check the patterns."""
        check_patterns(self.frames)
        check_patterns(self.comm)


class File(Entry, frozen=True):
    """The whole file. ``pool``: functions of pools of threads."""

    version: Literal[1]
    kinds: dict[_KindName, Names]
    pool: tuple[str, ...]

    def __post_init__(self) -> None:
        """Check the patterns."""
        check_patterns(self.pool)


class Kinds:
    """Applies one threads.yaml. Remembers what each function's name means."""

    def __init__(self, path: Path | None = None) -> None:
        """Raise BadFile if the file is invalid."""
        file = read_yaml(path or catalog_path("threads.yaml"), File)
        kinds = {Kind(name, True): names for name, names in file.kinds.items()}
        #: In the order of threads.yaml, the pool last: the first that matches is meant.
        self._frames = [(kind, any_of(names.frames)) for kind, names in kinds.items()]
        self._frames.append((_POOL, any_of(file.pool)))
        self._comms = [(kind, any_of(names.comm)) for kind, names in kinds.items()]
        self._known: dict[str, Kind | None] = {}

    def of(self, frames: tuple[Frame, ...], comm: str) -> Kind:
        """The kind of a thread with this stack (innermost first) and this name."""
        of_pool = False
        for frame in reversed(frames):
            kind = self._of_function(frame.function) if frame.function else None
            if kind is not None and kind.sure:
                return kind
            of_pool |= kind is not None
        return _first(self._comms, comm) or (_POOL if of_pool else _OTHER)

    def _of_function(self, function: str) -> Kind | None:
        if function not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[function] = _first(self._frames, plain_name(function))
        return self._known[function]


@cache
def default_kinds() -> Kinds:
    """Those of the installed catalog, built once."""
    return Kinds()


def _first(kinds: list[tuple[Kind, re.Pattern[str]]], name: str) -> Kind | None:
    return next((kind for kind, pattern in kinds if pattern.fullmatch(name)), None)
