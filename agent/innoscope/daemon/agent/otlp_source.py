"""Collect what the agent exports over OTLP: the latest scrape, and log records of findings and incidents."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlencode

from innoscope import __version__
from innoscope.daemon.push.otlp import MetricValues
from innoscope.daemon.push.otlp_encoding import LogRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from innoscope.daemon.agent.collect import Gatherer
    from innoscope.daemon.agent.config import Server as ConfiguredServer
    from innoscope.daemon.agent.servers import ObservedServer, Servers
    from innoscope.daemon.push.otlp_encoding import Attributes
    from innoscope.daemon.push.settings import Otlp
    from innoscope.diagnose.verdict import Finding, Verdict
    from innoscope.diagnose.watch.loop import Stalled

#: A scrape younger than this share of the interval is reused, for example one that Prometheus requested.
_MAX_SCRAPE_AGE: Final = 0.5
#: A finding that no verdict has contained for this many seconds has ended. If it returns, it begins again.
_ENDED_S: Final = 60.0
#: Findings with at least this score are urgent (docs/diagnose.md).
_URGENT: Final = 75.0


class OtlpSource:
    """Reads the metrics from the gatherer, and describes the servers as OTLP resources."""

    def __init__(self, otlp: Otlp, gatherer: Gatherer, servers: Servers) -> None:
        self._otlp, self._gatherer, self._servers = otlp, gatherer, servers
        self._host = socket.gethostname()

    def values(self) -> MetricValues | None:
        """Return the values of a recent scrape, or of a new one; None if that fails."""
        max_age_s = self._otlp.interval_seconds * _MAX_SCRAPE_AGE
        scrape = self._gatherer.recent(max_age_s)
        if scrape is None:
            return None
        return MetricValues(time.time_ns() - int(self._gatherer.age() * 1e9), scrape.series)

    def resources(self) -> dict[str, Attributes]:
        """Return the attributes of each server's resource, and under "" the agent's own.

        As with a Prometheus target, the service is the agent: ``service.name`` and ``service.instance.id``
        become the labels ``job`` and ``instance`` (specification/compatibility/prometheus_and_openmetrics.md
        in open-telemetry/opentelemetry-specification). The other attributes describe the server.
        """
        own: dict[str, str | int | float | None] = {
            "service.name": self._otlp.name,
            "service.instance.id": self._host,
            "service.version": __version__,
            "host.name": self._host,
            **self._otlp.attributes,
        }
        configured = {entry.name: entry for entry in self._servers.config.server}
        servers = {
            server.name: {**own, **self._server(server, configured.get(server.name), own)}
            for server in self._servers
        }
        return {"": own, **servers}

    def _server(
        self, server: ObservedServer, named: ConfiguredServer | None, own: Attributes
    ) -> dict[str, str | int | float | None]:
        """Return the attributes that describe a server.

        Except ``innoscope.server``, docs/registry/attributes in open-telemetry/semantic-conventions defines
        them.
        """
        target = server.target
        is_remote = target is None and not server.expected
        address = named.host if named is not None and is_remote else own["host.name"]
        return {
            "innoscope.server": server.name,
            "host.name": address,
            "db.system.name": target.flavour if target is not None else None,
            "server.address": address,
            "server.port": target.port if target is not None else named.port if named is not None else None,
        }


class NewFindings:
    """Detects the findings that begin. Only one thread may call ``records``."""

    def __init__(self, page_url: str) -> None:
        self._page_url = page_url
        self._seen: dict[tuple[str, str], float] = {}  # (server, finding) -> time of the last verdict with it

    def records(self, verdicts: Mapping[str, tuple[float, Verdict]]) -> list[LogRecord]:
        """Return a record for each finding that begins, given the latest verdict on each server."""
        records = []
        for server, (at, verdict) in verdicts.items():
            for finding in verdict.findings:
                seen = self._seen.get((server, finding.name))
                if seen is None or at - seen > _ENDED_S:
                    link = f"{self._page_url}/#{urlencode({'server': server, 'show': 'findings'})}"
                    records.append(_record(server, "innoscope.finding", at, finding, link))
                self._seen[server, finding.name] = at
        self._forget({server: at for server, (at, _) in verdicts.items()})
        return records

    def _forget(self, verdict_at: Mapping[str, float]) -> None:
        """Forget findings that have ended, and all findings of servers without a verdict."""
        self._seen = {
            key: at
            for key, at in self._seen.items()
            if key[0] in verdict_at and verdict_at[key[0]] - at <= _ENDED_S
        }


def incident_record(page_url: str, server: str, file: str, stalled: Stalled, verdict: Verdict) -> LogRecord:
    """Return the record of a stall that was captured to an incident file."""
    link = f"{page_url}/api/incidents?file={quote(file, safe='')}"
    first = verdict.findings[0] if verdict.findings else None
    at = stalled.evidence.begun
    about = {"innoscope.incident.file": file, "innoscope.trigger": stalled.trigger.text}
    if first is not None:
        return _record(server, "innoscope.incident", at, first, link, about)
    title = f"a stall was captured: {stalled.trigger.text}"
    return LogRecord(server, "innoscope.incident", at, title, False, {**about, "innoscope.link": link})


def _record(
    server: str, event: str, at: float, finding: Finding, link: str, about: Attributes | None = None
) -> LogRecord:
    """Return the record of a finding. It contains no text of statements, only their digests.

    A blocker without a connection and a thread is a note that the owner is unknown, and is omitted.
    """
    known = (one for one in finding.blockers if one.connection is not None or one.thread is not None)
    blocker = next(known, None)
    digests = [one.digest for one in finding.statements if one.digest is not None]
    attributes: Attributes = {
        "innoscope.finding": finding.name,
        "innoscope.score": round(finding.score, 1),
        "innoscope.blocker": blocker.words if blocker else None,
        "innoscope.blocker.digest": blocker.digest if blocker else None,
        "innoscope.digest": digests[0] if digests else None,
        "innoscope.link": link,
        **(about or {}),
    }
    return LogRecord(server, event, at, finding.title, finding.score >= _URGENT, attributes)
