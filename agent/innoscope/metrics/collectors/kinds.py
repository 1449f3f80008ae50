"""Determine the kinds of threads from their names and outermost functions, according to threads.yaml."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final, Literal, get_args

from innoscope._native import ThreadKinds
from innoscope.common.data import catalog_path
from innoscope.common.schema import Entry, read_yaml
from innoscope.sampling.wait_catalog import check_patterns

if TYPE_CHECKING:
    from pathlib import Path

#: The values of the ``group`` label of mysqld_cpu_seconds.
_KindName = Literal[
    "connection", "page_cleaner", "master", "io", "purge", "redo", "replication", "background", "other"
]
KINDS: Final[tuple[str, ...]] = get_args(_KindName)


class Names(Entry, frozen=True):
    """Patterns that match the functions and the thread names of one kind of thread."""

    frames: tuple[str, ...]
    comm: tuple[str, ...]

    def __post_init__(self) -> None:
        """Check the patterns. Raise ValueError if one is invalid."""
        check_patterns(self.frames)
        check_patterns(self.comm)


class ThreadsFile(Entry, frozen=True):
    """The contents of threads.yaml. ``pool`` contains patterns for the functions of thread pools."""

    version: Literal[1]
    kinds: dict[_KindName, Names]
    pool: tuple[str, ...]

    def __post_init__(self) -> None:
        """Check the patterns. Raise ValueError if one is invalid."""
        check_patterns(self.pool)


def load(path: Path | None = None) -> ThreadKinds:
    """Read and check threads.yaml, by default the installed one. Raise BadFile if it is invalid."""
    file = read_yaml(path or catalog_path("threads.yaml"), ThreadsFile)
    return ThreadKinds(file.kinds, file.pool)


@cache
def default_kinds() -> ThreadKinds:
    """Return the thread kinds of the installed catalog, which is read once."""
    return load()
