"""Print the alert rules with links that work on other hosts, such as a laptop.

``PYTHONPATH=dashboards python -m generate.links --grafana URL --runbooks URL > alerts.yaml``

With ``--agents https``, links to the agents (live pages, and runbooks without ``--runbooks``) use TLS.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Final

_RULES: Final = Path(__file__).parents[1] / "alerts" / "alerts.yaml"
#: Grafana's address in the shipped rules.
_GRAFANA: Final = "http://localhost:3000"
_LIVE_PAGE: Final = "http://{{ $labels.instance }}/#"
#: A runbook's URL in the shipped rules. Its host is an agent, which serves the runbooks.
_RUNBOOK: Final = re.compile(r"""(runbook_url: )["'].*/runbooks/(\w+)["']""")


def linked(rules: str, grafana: str | None, runbooks: str | None, agents: str = "http") -> str:
    """Return the rules' text with the given addresses. The URL of a runbook becomes ``RUNBOOKS/ALERT``."""
    if grafana is not None:
        rules = rules.replace(_GRAFANA, grafana.rstrip("/"))
    if runbooks is not None:
        rules = _RUNBOOK.sub(rf'\1"{runbooks.rstrip("/")}/\2"', rules)
    elif agents != "http":
        rules = re.sub(r"(runbook_url: [\"'])http:", rf"\1{agents}:", rules)
    return rules.replace(_LIVE_PAGE, _LIVE_PAGE.replace("http:", f"{agents}:"))


def _main() -> None:
    parser = argparse.ArgumentParser(description="Print the alert rules with other links.")
    parser.add_argument("--grafana", metavar="URL", help="Grafana's address")
    parser.add_argument("--runbooks", metavar="URL", help="the address below which the runbooks are served")
    parser.add_argument("--agents", choices=("http", "https"), default="http", help="how agents are reached")
    options = parser.parse_args()
    sys.stdout.write(linked(_RULES.read_text(), options.grafana, options.runbooks, options.agents))


if __name__ == "__main__":
    _main()
