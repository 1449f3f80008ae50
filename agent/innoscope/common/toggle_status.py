"""The file that ``innoscope toggle`` writes and the agent reads: which settings were changed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

VERSION: Final = 1


def status_path() -> Path:
    """Return the file's path, in ``$INNOSCOPE_RUN`` or else /run/innoscope."""
    return Path(os.environ.get("INNOSCOPE_RUN") or "/run/innoscope") / "toggles.json"
