"""Test with a real Prometheus server that the agent's metrics are valid, complete, bounded and cheap.

Also test the agent's pages.
"""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import time
from contextlib import ExitStack
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest

from bench.proc import cpu_seconds, memory_mb
from certificates import self_signed
from innoscope.metrics import registry
from prometheus import Prometheus
from safety.agenting import Running
from safety.sensing import Sensing
from scale import count, few
from servers import Server
from waiting import until
from workloads import RowLock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAMES = ("mysql-5.6.24", "mariadb-10.11")
SCRAPES = count(quick=20, full=60)
#: The bcrypt hash of ann's password, "secret", at the lowest cost.
USER = '"$2b$04$8rxkvEEf1L4p9tz1nvUw6OunHm9Car9xkcNHBZO9SqJ.uu7AGXIUW"'
PATIENCE_S = 60


@pytest.fixture(scope="module", params=few(NAMES, "mysql-5.6.24", reason="the pages do not depend on it"))
def scene(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Running, Sensing]]:
    """Yield a server with some waiting threads, its agent and its sensor."""
    with ExitStack() as stack:
        server = stack.enter_context(Server(request.param))
        stack.enter_context(RowLock(server, 6))
        sensing = stack.enter_context(Sensing(only=[server]))
        agent = stack.enter_context(Running(server, sensor=sensing.path))
        agent.until(
            lambda scrape: (
                bool(scrape.value("threads", wait="row_lock", kind="client")) and scrape.value("sql_up") == 1
            ),
            patience=60,
        )
        yield server, agent, sensing


def test_promtool_finds_no_problems(scene: tuple[Server, Running, Sensing]) -> None:
    _, agent, _ = scene
    for accept in ("text/plain", "*/*"):
        text = agent.scrape(Accept=accept).text
        done = subprocess.run(
            ["promtool", "check", "metrics"],
            input=text,
            text=True,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_every_series_is_declared_and_their_number_is_bounded(scene: tuple[Server, Running, Sensing]) -> None:
    _, agent, _ = scene
    scrape = agent.scrape()
    declared = {metric.exported for metric in registry.default()}
    names = {
        name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name, _ in scrape.values
    }

    assert names <= declared | {"innoscope_memory_sql_difference"}
    assert len(scrape.values) <= 3000


def test_memory_and_sql_agree(scene: tuple[Server, Running, Sensing]) -> None:
    server, agent, _ = scene
    found = agent.until(lambda scrape: bool(scrape.named("memory_sql_difference"))).named(
        "memory_sql_difference"
    )
    still = {dict(labels)["name"]: value for labels, value in found.items()}

    assert len(still) > (10 if server.name == "mysql-5.6.24" else 0)  # mariadb-10.11 is stripped
    assert still["connections_limit"] == 0
    assert still.get("buffer_pool_pages", 0) == 0


def test_scrapes_are_cheap(scene: tuple[Server, Running, Sensing]) -> None:
    """Check that a scrape uses little CPU time. Its wall time depends on the other tests that are running.

    Use the median, because time in which a hypervisor runs other machines can count as CPU time.
    """
    _, agent, _ = scene
    used = [cpu_seconds(agent.pid)]
    for _ in range(SCRAPES):
        time.sleep(0.26)  # a scrape within this time would get the result of the previous one
        agent.scrape()
        used.append(cpu_seconds(agent.pid))

    assert median(after - before for before, after in pairwise(used)) < 0.025
    assert (used[-1] - used[0]) / SCRAPES < 0.05
    assert memory_mb(agent.pid)["rss"] < 60


def _snapshots(agent: Running) -> int:
    status, body, *_ = agent.get("/api/stacks?format=json")
    return int(json.loads(body)["looks"]) if status == 200 else 0


def test_stacks_are_served_in_every_format(scene: tuple[Server, Running, Sensing]) -> None:
    _, agent, _ = scene
    deadline = time.monotonic() + PATIENCE_S
    while b"row lock" not in (body := agent.get("/api/stacks?from=-5m")[1]) or _snapshots(agent) < 2:
        assert time.monotonic() < deadline, body
        time.sleep(0.5)
    assert agent.get("/api/stacks?format=tree")[0] == 200
    assert b";" in agent.get("/api/stacks?format=folded")[1]
    assert json.loads(agent.get("/api/stacks?format=speedscope")[1])["profiles"]
    assert gzip.decompress(agent.get("/api/stacks?format=pprof")[1])
    assert agent.get("/api/stacks?format=html")[1].lower().startswith(b"<!doctype html")
    for query, words in (
        ("format=doc", b"format= must be one of"),
        ("server=x", b"server= must be one of"),
        ("from=soon", b"is not a time"),
    ):
        status, body = agent.get(f"/api/stacks?{query}")
        assert status == 400
        assert words in body


def test_pages_for_users_and_health_checks(scene: tuple[Server, Running, Sensing]) -> None:
    server, agent, _ = scene
    until(lambda: b'<span class="good">up</span>' in agent.get("/")[1])  # unless the last answer was late
    page = agent.get("/")[1].decode()

    assert server.version.split("-")[0] in page
    assert not re.findall(r"<script(?![^>]* src=)|<style|\son[a-z]+=|https?:", page)
    status, body = agent.get("/api/probes")
    assert status == 200
    assert isinstance(json.loads(body), dict)
    assert agent.get("/-/ready") == (200, b"Innoscope is ready.\n")


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    self_signed(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", few(NAMES, "mysql-5.6.24", reason="only TLS and the password are new here"))
def test_prometheus_scrapes_over_tls_with_a_password(name: str, server: Any, certificate: Path) -> None:
    web = certificate / "web.yaml"
    web.write_text(
        "tls_server_config: {cert_file: cert.pem, key_file: key.pem, min_version: TLS13}\n"
        f"basic_auth_users: {{ann: {USER}}}\n"
    )
    with (
        Sensing(only=[server(name)]) as sensing,
        Running(server(name), "--web.config.file", web, sensor=sensing.path) as agent,
        Prometheus(
            certificate,
            agent.port,
            "scheme: https",
            f"tls_config: {{ca_file: {certificate}/cert.pem}}",
            "basic_auth: {username: ann, password: secret}",
        ) as prometheus,
    ):
        prometheus.until("up == 1")
        prometheus.until("innoscope_sql_up == 1")
        prometheus.until("innoscope_mysqld_up == 1")
        prometheus.until("innoscope_sensor_up == 1")
        prometheus.until('sum(innoscope_threads{wait="background_idle"}) > 0')
        prometheus.until("rate(innoscope_statements_total[30s]) > 0")
        prometheus.until("scrape_samples_scraped > 0")
        assert prometheus.value("max_over_time(scrape_samples_scraped[5m])") <= 3000
        metadata = prometheus.get("/api/v1/metadata")
        assert metadata["innoscope_statements"][0]["type"] == "counter"
        assert metadata["innoscope_buffer_pool_pages"][0]["help"].startswith("Pages of the buffer pool")
