"""Reading ``probes/catalog/hot.yaml``: which functions are too hot, and what answers the question instead."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from innoscope.common.data import catalog_path, read_yaml
from innoscope.common.errors import BadFile
from innoscope.probes.mangling import is_of


@dataclass(frozen=True, slots=True)
class Hot:
    """Some functions that are alike: why they are hot, the way around, what a hit counts in the budget."""

    functions: tuple[str, ...]
    why: str
    instead: str
    weight: int = 1

    def has(self, symbol: str) -> bool:
        """Whether that symbol is one of them."""
        return is_of(symbol, self.functions)


@cache
def default_hot() -> tuple[Hot, ...]:
    """The list that comes with the program."""
    path = catalog_path("hot.yaml")
    try:
        return tuple(_hot(entry) for entry in read_yaml(path)["hot"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadFile(f"{path}: {error}") from error


def _hot(entry: dict[str, Any]) -> Hot:
    weight = entry.get("weight", 1)
    if not isinstance(weight, int) or weight < 1:
        raise ValueError(f"weight {weight!r} is no whole number from 1 on")
    return Hot(tuple(entry["functions"]), str(entry["why"]), str(entry["instead"]), weight)


def of(symbol: str) -> Hot | None:
    """What is known of a symbol; None for one that is not in the list."""
    return next((hot for hot in default_hot() if hot.has(symbol)), None)
