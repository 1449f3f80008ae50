"""Read ``probes/catalog/hot.yaml``, which lists functions that are too hot to probe, and alternatives."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Literal

from msgspec import Meta

from innoscope.common.data import catalog_path
from innoscope.common.schema import Entry, read_yaml
from innoscope.probes.mangling import is_symbol_of


class Hot(Entry, frozen=True):
    """A group of hot functions: why they are hot, an alternative, and the weight of a hit in the budget."""

    functions: tuple[str, ...]
    why: str
    instead: str
    weight: Annotated[int, Meta(ge=1)] = 1

    def has(self, symbol: str) -> bool:
        """Return whether the symbol belongs to one of the group's functions."""
        return is_symbol_of(symbol, self.functions)


class HotFile(Entry, frozen=True):
    """The contents of hot.yaml."""

    version: Literal[1]
    hot: tuple[Hot, ...]


@cache
def default_hot() -> tuple[Hot, ...]:
    """Return the installed list. Raise BadFile if it cannot be read or is invalid."""
    return read_yaml(catalog_path("hot.yaml"), HotFile).hot


def find(symbol: str) -> Hot | None:
    """Return the entry for a symbol, or None if the list has none."""
    return next((hot for hot in default_hot() if hot.has(symbol)), None)
