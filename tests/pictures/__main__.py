"""Make the pictures of docs/dashboards: ``make pictures``, or ``python -m pictures [FOLDER]``."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import grafana
from live.dashboard_scene import BUSY_NAME, SLOW_S, acts
from pictures.data import Source
from pictures.draw import picture

DOCS = Path(__file__).parents[2] / "docs" / "dashboards"
#: Height of the README's picture in Grafana's grid units, measured from the top of the dashboard.
_TOP = 32


def main(folder: Path) -> None:
    """Render all dashboards, and the upper part of one for the README."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="innoscope-") as name:
        Path(name).chmod(0o755)  # the agent runs as nobody
        os.environ["INNOSCOPE_RUN"] = name
        with acts(Path(name)) as (prometheus, seconds):
            now = int(time.time())
            for uid, board in grafana.dashboards().items():
                alone = uid not in ("innoscope-fleet", "innoscope-agent")
                chosen = {"server": BUSY_NAME} if alone else {}
                source = Source(prometheus, now - seconds, now, SLOW_S, "12s", chosen)
                picture(board, source, folder / f"{uid}.png")
                if uid == "innoscope-server":
                    picture(board, source, folder / "readme.png", rows=_TOP)
    for path in sorted(folder.glob("*.png")):
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else DOCS)
