"""Write the dashboards and the mixin's rules: ``PYTHONPATH=dashboards python -m generate``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import yaml

from generate import dashboards

FOLDER = Path(__file__).parents[1] / "grafana"
ALERTS = Path(__file__).parents[1] / "alerts"
#: The rules in the format that mixin.libsonnet imports. The jsonnet of Debian 12 cannot parse them as YAML.
MIXIN_RULES = Path(__file__).parents[1] / "mixin-rules.json"


def text(dashboard: object) -> str:
    """Return the contents of a generated file."""
    return json.dumps(dashboard, indent=1, ensure_ascii=False) + "\n"


def mixin_rules() -> dict[str, object]:
    """Return the contents of the files with alerts and recording rules, by the mixin's names for them."""
    files = {"prometheusAlerts": "alerts.yaml", "prometheusRules": "recording.yaml"}
    return {name: yaml.safe_load((ALERTS / file).read_text()) for name, file in files.items()}


if __name__ == "__main__":
    MIXIN_RULES.write_text(text(mixin_rules()))
    print(MIXIN_RULES, file=sys.stderr)
    for name, dashboard in dashboards().items():
        (FOLDER / name).write_text(text(dashboard))
        print(FOLDER / name, file=sys.stderr)
