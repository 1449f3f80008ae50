"""Tell what a thread is for, by the root of its stack and its name: threads.yaml has the names."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final, Literal, get_args

from innoscope._native import ThreadKinds
from innoscope.common.data import catalog_path
from innoscope.common.schema import Entry, read_yaml
from innoscope.sampling.wait_catalog import check_patterns

if TYPE_CHECKING:
    from pathlib import Path

#: The values of the label ``group`` of mysqld_cpu_seconds.
_KindName = Literal[
    "connection", "page_cleaner", "master", "io", "purge", "redo", "replication", "background", "other"
]
KINDS: Final[tuple[str, ...]] = get_args(_KindName)


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


def load(path: Path | None = None) -> ThreadKinds:
    """Read and check a threads.yaml. Raises BadFile."""
    file = read_yaml(path or catalog_path("threads.yaml"), File)
    return ThreadKinds(file.kinds, file.pool)


@cache
def default_kinds() -> ThreadKinds:
    """Return the kinds of the installed catalog, built once."""
    return load()
