"""Recognize what threads are doing from their stacks, by the patterns in ``activities.yaml``."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

from innoscope._native import Patterns
from innoscope.common.data import catalog_path
from innoscope.common.schema import Entry, read_yaml

if TYPE_CHECKING:
    from pathlib import Path

#: Number of distinct stacks whose activities are cached. Most stacks recur in each snapshot.
_CACHED = 4_096
_Patterns = Annotated[tuple[str, ...], Meta(min_length=1)]


class Activity(Entry, frozen=True):
    """One activity: the kinds of threads that perform it, and alternative lists of function patterns."""

    kinds: Annotated[tuple[str, ...], Meta(min_length=1)]
    stacks: Annotated[tuple[_Patterns, ...], Meta(min_length=1)]


class ActivitiesFile(Entry, frozen=True):
    """The contents of activities.yaml."""

    version: Literal[1]
    activities: dict[str, Activity]


@cache
def default_activities() -> dict[str, Activity]:
    """Return the activities of the installed catalog by name."""
    return load()


def load(path: Path | None = None) -> dict[str, Activity]:
    """Return the activities in the file, by default the installed catalog. Raise BadFile if it is invalid."""
    return read_yaml(path or catalog_path("activities.yaml"), ActivitiesFile).activities


@cache
def _patterns() -> tuple[tuple[str, tuple[str, ...], tuple[tuple[Patterns, ...], ...]], ...]:
    return tuple(
        (name, one.kinds, tuple(tuple(Patterns([pattern]) for pattern in stack) for stack in one.stacks))
        for name, one in default_activities().items()
    )


@lru_cache(maxsize=_CACHED)
def activities_of(kind: str, functions: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the activities of a thread of ``kind`` with ``functions`` on its stack."""
    return tuple(
        name
        for name, kinds, stacks in _patterns()
        if kind in kinds
        and any(all(any(map(pattern.matches, functions)) for pattern in stack) for stack in stacks)
    )
