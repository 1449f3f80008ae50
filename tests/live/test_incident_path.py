"""Test that a stall causes an alert, and a notification with the blocker and a link to a file to diagnose.

The server, the agent, Prometheus and Alertmanager are real. Prometheus scrapes every five seconds.
"""

from __future__ import annotations

import json
import subprocess
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import grafana
from alerting import Alertmanager, Notified
from prometheus import Prometheus
from safety.agenting import Running
from safety.command import INNOSCOPE
from safety.sensing import Sensing
from scale import long
from servers import Server
from waiting import until
from webhook import Webhook
from workloads import RowLock

if TYPE_CHECKING:
    from pathlib import Path

    from grafana import Target

#: Maximum seconds from the beginning of the stall until its diagnosis is available. Alertmanager's group_wait
#: is 30 s in the example configuration, and is scaled to 0.5 s.
WITHIN_S = 90
SCRAPE_S = 5
PAGE = "http://db1:9977"
ALERT = "InnoscopeFinding"
#: A custom alert rule with the query from docs/diagnose.md.
RULES = {
    "groups": [
        {
            "name": "findings",
            "rules": [
                {
                    "alert": ALERT,
                    "expr": "max by (instance, server, finding) (innoscope_finding_score >= 80)",
                    "labels": {"severity": "warning"},
                }
            ],
        }
    ]
}


class WithAlerts(Prometheus):
    """A Prometheus server with the rules above, which sends its alerts to an Alertmanager."""

    def __init__(self, folder: Path, target: int, alertmanager: Alertmanager) -> None:
        (folder / "rules.json").write_text(json.dumps(RULES))
        super().__init__(folder, target, interval_s=SCRAPE_S, rules=[folder / "rules.json"])
        with (folder / "prometheus.yml").open("a") as config:
            targets = f"[{{targets: ['127.0.0.1:{alertmanager.port}']}}]"
            config.write(f"alerting: {{alertmanagers: [{{static_configs: {targets}}}]}}\n")


def opened(agent: Running, link: str, folder: Path) -> Any:
    """Return the diagnosis of the file to which a notification links."""
    url = link.replace(PAGE, f"http://127.0.0.1:{agent.port}")
    command = [INNOSCOPE, "incidents", "open", url, "--dir", str(folder), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 18, done.stderr
    return json.loads(done.stdout)


def empty(prometheus: Prometheus, targets: list[Target]) -> list[str]:
    """Return the queries without data."""
    queries = [grafana.filled(target.expr, interval="1m", job="innoscope") for target in targets]
    return [query for query in queries if not prometheus.instant(query, time.time())]


@long("it waits for real intervals; test_watch.py and test_alerts.py test the parts")
def test_stall_is_diagnosed_from_its_alert(folder: Path) -> None:
    options = (
        f'[notify]\nurl = "WEBHOOK"\npage_url = "{PAGE}"',
        f'[watch]\ntriggers = ["share.row_lock>0.3"]\ndirectory = "{folder}/stalls"',
        "seconds = 5\nbefore_seconds = 10",
    )
    with ExitStack() as stack:
        server = stack.enter_context(Server("mysql-5.6.24"))
        webhook = stack.enter_context(Webhook([503]))  # unavailable at first
        sensing = stack.enter_context(Sensing("--no-probes", only=[server]))
        settings = [one.replace("WEBHOOK", webhook.url) for one in options]
        agent = stack.enter_context(Running(server, sensor=sensing.path, options=settings))
        notified = stack.enter_context(Notified())
        alertmanager = stack.enter_context(Alertmanager(folder, notified))
        prometheus = stack.enter_context(WithAlerts(folder, agent.port, alertmanager))
        agent.until(lambda scrape: scrape.value("findings_up") == 1, WITHIN_S)
        panels = [one for one in grafana.targets() if " / Findings" in str(one)]
        assert len(panels) == 3
        assert [query for query in empty(prometheus, panels) if "findings_up" in query] == []

        began = time.monotonic()
        stack.enter_context(RowLock(server, 10))
        until(lambda: webhook.received, within_s=WITHIN_S)
        reported_s = time.monotonic() - began
        until(lambda: notified.of(ALERT).get("firing"), within_s=WITHIN_S)
        alerted_s = time.monotonic() - began
        [alert] = webhook.received[0]["alerts"]
        diagnosis = opened(agent, alert["annotations"]["incident"], folder / "fetched")
        diagnosed_s = time.monotonic() - began
        assert empty(prometheus, panels) == []

    print(f"report {reported_s:.0f} s, alert {alerted_s:.0f} s, diagnosis {diagnosed_s:.0f} s after it")
    assert notified.of(ALERT)["firing"]["labels"]["finding"] == "row_lock_convoy"
    assert alert["annotations"]["description"].startswith("blocker: ")
    assert diagnosis["findings"][0]["name"] == "row_lock_convoy"
    assert diagnosis["findings"][0]["blockers"]
    assert diagnosed_s < WITHIN_S
