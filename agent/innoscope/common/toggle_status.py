"""Locate the status file in which ``innoscope toggle`` records changed settings for the agent."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

VERSION: Final = 1


def status_path() -> Path:
    """Return the path of the status file, in ``$INNOSCOPE_RUN`` if it is set, else in /run/innoscope."""
    return Path(os.environ.get("INNOSCOPE_RUN") or "/run/innoscope") / "toggles.json"
