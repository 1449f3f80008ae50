"""Run the shipped alert rules with scaled times in Debian's Prometheus and Alertmanager.

A webhook stores the notifications.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import yaml

import waiting
from prometheus import Prometheus
from servers import Keeper, cache, free_port
from servers.debian import unpack_packages

if TYPE_CHECKING:
    from collections.abc import Callable

ALERTS: Final = Path(__file__).parents[1] / "dashboards" / "alerts"

#: The rules' times are divided by this factor, so that a minute becomes a second. Windows are at least
#: ``LEAST_WINDOW_MS`` long, because a rate needs several scrapes.
FACTOR: Final = 60
LEAST_WINDOW_MS: Final = 4_000
_PATIENCE_S: Final = 60
_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_WAITS: Final = ("group_wait", "group_interval", "repeat_interval")
_WINDOW: Final = re.compile(r"\[(\d+)(ms|s|m|h|d)\]")


def scaled(rules: Any, factor: int = FACTOR, least_window_ms: int = LEAST_WINDOW_MS) -> Any:
    """Divide each ``for`` and window by ``factor``, but make no window shorter than ``least_window_ms``."""

    def shorter(match: re.Match[str]) -> str:
        return f"[{max(_ms(*match.groups()) // factor, least_window_ms)}ms]"

    def one(rule: dict[str, Any]) -> dict[str, Any]:
        changed = rule | {"expr": _WINDOW.sub(shorter, rule["expr"])}
        if "for" in rule:
            changed["for"] = _divided(rule["for"], factor)
        return changed

    groups = [group | {"rules": [one(rule) for rule in group["rules"]]} for group in rules["groups"]]
    return rules | {"groups": groups}


def _divided(duration: str, factor: int) -> str:
    unit = duration.lstrip("0123456789")
    return f"{_ms(duration.removesuffix(unit), unit) // factor}ms"


def _ms(number: str, unit: str) -> int:
    return int(number) * _MS[unit]


def tool(name: str) -> Path:
    """Return the path of a program in a Debian package.

    The package is unpacked and not installed, because installing it would start a service.
    """
    home = cache.root() / "tools" / "alertmanager"
    with cache.locked(home.name):
        if not home.exists():
            with cache.made_whole(home) as scratch:
                unpack_packages(("prometheus-alertmanager",), scratch, scratch)
    return home / "usr/bin" / name


def _with_its_templates() -> list[str]:
    """Return a command prefix that mounts Alertmanager's templates where Debian's build expects them."""
    over = f"lowerdir={tool('amtool').parents[1] / 'share'}:/usr/share"
    script = f'mount -t overlay -o {over} templates /usr/share && exec "$0" "$@"'
    return ["unshare", "--mount", "sh", "-c", script]


class Notified:
    """Context manager: a webhook that stores Alertmanager's notifications."""

    def __init__(self) -> None:
        self.notifications: list[dict[str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.notifications.append(body | {"path": self.path, "at": time.monotonic()})
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port

    def __enter__(self) -> Notified:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def summary(self) -> list[tuple[str, str]]:
        """Return (alert, status) for each alert in the notifications, in order."""
        return [
            (one["labels"]["alertname"], one["status"])
            for notification in list(self.notifications)
            for one in notification["alerts"]
        ]

    def of(self, alert: str) -> dict[str, dict[str, Any]]:
        """Return the alert's first notification of each status (firing, resolved), with its path and time."""
        return {
            one["status"]: one | {key: notification[key] for key in ("path", "at")}
            for notification in reversed(self.notifications)
            for one in notification["alerts"]
            if one["labels"]["alertname"] == alert
        }


class Alertmanager:
    """Debian's Alertmanager with the scaled example configuration. It sends notifications to ``notified``."""

    def __init__(self, folder: Path, notified: Notified) -> None:
        self.port = free_port()
        config = yaml.safe_load((ALERTS / "alertmanager.yaml").read_text())
        for route in config["route"]["routes"]:
            route |= {key: _divided(value, FACTOR) for key, value in route.items() if key in _WAITS}
        for receiver in config["receivers"]:
            for hook in receiver.get("webhook_configs", ()):
                hook["url"] = hook["url"].replace(":9095", f":{notified.port}")
        (folder / "alertmanager.yml").write_text(yaml.safe_dump(config))
        self._log = folder / "alertmanager.log"
        self._command = [
            *_with_its_templates(), str(tool("prometheus-alertmanager")),
            f"--config.file={folder}/alertmanager.yml", f"--storage.path={folder}/alertmanager",
            f"--web.listen-address=127.0.0.1:{self.port}", "--cluster.listen-address=", "--log.level=warn",
        ]  # fmt: skip
        self._keeper = Keeper()

    def __enter__(self) -> Alertmanager:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._keeper.watch(self._process.pid)
        until(self._listens, self._log.read_text)
        return self

    def __exit__(self, *_: object) -> None:
        self._keeper.end(self._process)
        self._keeper.close()

    def suppressed(self) -> set[str]:
        """Return the names of the alerts that are inhibited by other alerts."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_PATIENCE_S)
        try:
            connection.request("GET", "/api/v2/alerts")
            alerts = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        return {one["labels"]["alertname"] for one in alerts if one["status"]["inhibitedBy"]}

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


class Alerting(Prometheus):
    """A Prometheus server with the scaled rules, which scrapes every second and sends alerts."""

    def __init__(self, folder: Path, target: int, alertmanager: Alertmanager | None = None) -> None:
        super().__init__(folder, target)
        for name in ("recording.yaml", "alerts.yaml"):
            rules = scaled(yaml.safe_load((ALERTS / name).read_text()))
            (folder / name).write_text(yaml.safe_dump(rules, width=1_000))
        file = folder / "prometheus.yml"
        config = yaml.safe_load(file.read_text())
        config["global"]["evaluation_interval"] = "1s"
        config["rule_files"] = ["recording.yaml", "alerts.yaml"]
        if alertmanager is not None:
            targets = [{"targets": [f"127.0.0.1:{alertmanager.port}"]}]
            config["alerting"] = {"alertmanagers": [{"static_configs": targets}]}
        file.write_text(yaml.safe_dump(config))

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def states(self) -> dict[str, str]:
        """Return the state of each pending or firing alert."""
        alerts = self.get("/api/v1/alerts")["alerts"]
        return {one["labels"]["alertname"]: one["state"] for one in alerts}

    def description(self, alert: str) -> str:
        """Return the description of an alert as of the last evaluation; empty if it is not active."""
        alerts = self.get("/api/v1/alerts")["alerts"]
        found = [one for one in alerts if one["labels"]["alertname"] == alert]
        return str(found[0]["annotations"]["description"]) if found else ""

    def fired(self, seconds: float) -> dict[str, int]:
        """Return the number of evaluations in the last ``seconds`` at which each alert was firing."""
        query = f'sum by (alertname) (count_over_time(ALERTS{{alertstate="firing"}}[{int(seconds)}s]))'
        found = self.get(f"/api/v1/query?{urllib.parse.urlencode({'query': query})}")["result"]
        return {one["metric"]["alertname"]: int(one["value"][1]) for one in found}


def until(holds: Callable[[], Any], words: Callable[[], object], patience: float = _PATIENCE_S) -> Any:
    """Wait until ``holds()`` is true, and return its value. On timeout, fail with the message ``words()``."""
    return waiting.until(holds, words, within_s=patience, every_s=0.1)
