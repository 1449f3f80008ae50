"""Reading and checking ``probes/catalog/toggles.yaml``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from innoscope.toggles.model import Generation, Raw, Toggle, Way


def load(path: Path | None = None) -> dict[str, Toggle]:
    """All toggles by name. Raises BadFile."""
    raise NotImplementedError


def generation(toggle: Toggle, flavour: str, version: tuple[int, ...]) -> Generation:
    """What the catalog says of such servers. Raises NotOnThisServer."""
    raise NotImplementedError


def raws(way: Way, toggle: Toggle, value: str) -> tuple[Raw, ...]:
    """The raw value for each assignment. Raises Refused."""
    raise NotImplementedError


def spoken(way: Way, toggle: Toggle, raws: Sequence[Raw]) -> str:
    """The other direction, for display."""
    raise NotImplementedError
