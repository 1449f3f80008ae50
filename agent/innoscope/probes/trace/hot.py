"""Read ``probes/catalog/hot.yaml``: which functions are too hot to probe, and what to do instead."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Literal

from msgspec import Meta

from innoscope.common.data import catalog_path
from innoscope.common.schema import Entry, read_yaml
from innoscope.probes.mangling import is_symbol_of


class Hot(Entry, frozen=True):
    """Similar functions: why they are hot, what to do instead, and what a hit counts in the budget."""

    functions: tuple[str, ...]
    why: str
    instead: str
    weight: Annotated[int, Meta(ge=1)] = 1

    def has(self, symbol: str) -> bool:
        """Return whether a symbol is one of them."""
        return is_symbol_of(symbol, self.functions)


class File(Entry, frozen=True):
    """The whole file."""

    version: Literal[1]
    hot: tuple[Hot, ...]


@cache
def default_hot() -> tuple[Hot, ...]:
    """Return the installed list. Raises BadFile."""
    return read_yaml(catalog_path("hot.yaml"), File).hot


def find(symbol: str) -> Hot | None:
    """Return what is known of a symbol; None for one that is not in the list."""
    return next((hot for hot in default_hot() if hot.has(symbol)), None)
