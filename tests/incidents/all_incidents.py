"""Collect all incidents of the lab: the INCIDENTS lists of the modules ``scenes*``."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from incidents.lab import Incident


def _listed() -> Iterator[Incident]:
    for module in sorted(found.name for found in pkgutil.iter_modules([str(Path(__file__).parent)])):
        if module.startswith("scenes"):
            yield from importlib.import_module(f"incidents.{module}").INCIDENTS


INCIDENTS: tuple[Incident, ...] = tuple(_listed())
BY_NAME = {incident.name: incident for incident in INCIDENTS}
assert len(BY_NAME) == len(INCIDENTS), "two incidents have one name"
