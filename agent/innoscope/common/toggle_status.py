"""Locate the status file of toggles: ``innoscope toggle`` records changed settings there for the agent."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

VERSION: Final = 1


def status_path() -> Path:
    """Return the file's path: in ``$INNOSCOPE_RUN``, else in /run/innoscope."""
    return Path(os.environ.get("INNOSCOPE_RUN") or "/run/innoscope") / "toggles.json"
