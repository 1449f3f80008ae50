"""Write the dashboard files: ``PYTHONPATH=dashboards python -m generate`` (``make dashboards``)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from generate import dashboards

FOLDER = Path(__file__).parents[1] / "grafana"


def text(dashboard: object) -> str:
    """Return the contents of a dashboard file."""
    return json.dumps(dashboard, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name, dashboard in dashboards().items():
        (FOLDER / name).write_text(text(dashboard))
        print(FOLDER / name, file=sys.stderr)
