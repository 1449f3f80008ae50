"""The catalog of toggles: its interface only; the loader takes the place of this."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from innoscope.toggles.model import Generation, Raw, Toggle, Way


def load(path: Path | None = None) -> dict[str, Toggle]:
    """All toggles by name, in file order. Raises BadFile."""
    raise NotImplementedError


def generation(toggle: Toggle, flavour: str, version: tuple[int, ...]) -> Generation:
    """What is known of the toggle on that server. Raises NotOnThisServer."""
    raise NotImplementedError


def raws(way: Way, toggle: Toggle, value: str) -> tuple[Raw, ...]:
    """What is written for each assignment of the way. Raises Refused with what is allowed."""
    raise NotImplementedError


def allowed(way: Way, toggle: Toggle) -> str:
    """The values that this way takes: ``on, off`` or ``0 to 1000 threads``; empty for an action."""
    raise NotImplementedError


def spoken(way: Way, toggle: Toggle, raws: Sequence[Raw | None]) -> str:
    """What the settings of the way mean: ``off``, ``on (40)``, ``200``."""
    raise NotImplementedError
