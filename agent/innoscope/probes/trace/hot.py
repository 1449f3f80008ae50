"""Read ``probes/catalog/hot.yaml``: functions that are too hot, and what to trace instead."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from innoscope.common.data import catalog_path, read_yaml
from innoscope.common.errors import BadFile
from innoscope.probes.mangling import is_symbol_of


@dataclass(frozen=True, slots=True)
class Hot:
    """Hot functions of one kind: why they are hot, the alternative, and the weight of a hit in the budget."""

    functions: tuple[str, ...]
    why: str
    instead: str
    weight: int = 1

    def has(self, symbol: str) -> bool:
        """Return whether the symbol belongs to one of them."""
        return is_symbol_of(symbol, self.functions)


@cache
def default_hot() -> tuple[Hot, ...]:
    """Return the list in the package's catalog."""
    path = catalog_path("hot.yaml")
    try:
        return tuple(_hot(entry) for entry in read_yaml(path)["hot"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadFile(f"{path}: {error}") from error


def _hot(entry: dict[str, Any]) -> Hot:
    weight = entry.get("weight", 1)
    if not isinstance(weight, int) or weight < 1:
        raise ValueError(f"weight {weight!r} is not a positive integer")
    return Hot(tuple(entry["functions"]), str(entry["why"]), str(entry["instead"]), weight)


def find(symbol: str) -> Hot | None:
    """Return the entry of a symbol; None if it is not listed."""
    return next((hot for hot in default_hot() if hot.has(symbol)), None)
