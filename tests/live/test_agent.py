"""The agent scraped by a real Prometheus: clean, complete, bounded, quick; and its pages."""

from __future__ import annotations

import gzip
import json
import os
import re
import statistics
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from certificates import self_signed
from innoscope.metrics import registry
from live import figures
from prometheus import Prometheus
from safety.agenting import Running
from safety.sensing import Sensing
from scale import count, few
from servers import Server
from workloads import RowLock

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = ("mysql-5.6.24", "mariadb-10.11")
SCRAPES = count(quick=20, full=60)
#: ann:secret, at bcrypt's lowest cost.
USER = '"$2b$04$8rxkvEEf1L4p9tz1nvUw6OunHm9Car9xkcNHBZO9SqJ.uu7AGXIUW"'
PATIENCE_S = 30


@pytest.fixture(scope="module", params=few(NAMES, "mysql-5.6.24", reason="the pages are the agent's"))
def scene(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Running, Sensing]]:
    """A server with some waiting threads, its sensor, and the agent."""
    with ExitStack() as stack:
        server = stack.enter_context(Server(request.param))
        stack.enter_context(RowLock(server, 6))
        sensing = stack.enter_context(Sensing(only=[server]))
        agent = stack.enter_context(Running(server, sensor=sensing.path))
        agent.until(
            lambda scrape: bool(scrape.value("threads", wait="row_lock")) and scrape.value("sql_up") == 1
        )
        yield server, agent, sensing


def test_promtool_has_nothing_to_say(scene: tuple[Server, Running, Sensing]) -> None:
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


def test_every_series_is_declared_and_there_are_not_too_many(scene: tuple[Server, Running, Sensing]) -> None:
    server, agent, _ = scene
    scrape = agent.scrape()
    declared = {metric.exported for metric in registry.default()}
    names = {
        name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name, _ in scrape.values
    }

    assert names <= declared | {"innoscope_memory_sql_difference"}
    assert len(scrape.values) <= 3000
    figures.record("series of one server", server.name, f"{len(scrape.values)}", series=len(scrape.values))


def test_memory_and_sql_agree(scene: tuple[Server, Running, Sensing]) -> None:
    server, agent, _ = scene
    found = agent.until(lambda scrape: bool(scrape.named("memory_sql_difference"))).named(
        "memory_sql_difference"
    )
    still = {dict(labels)["name"]: value for labels, value in found.items()}

    assert len(still) > (10 if server.name == "mysql-5.6.24" else 0)  # the other one is stripped
    assert still["connections_limit"] == 0
    assert still.get("buffer_pool_pages", 0) == 0


def test_scrapes_are_quick(scene: tuple[Server, Running, Sensing]) -> None:
    server, agent, sensing = scene
    used = _cpu(agent.pid), _cpu(sensing.pid)
    seconds = []
    for _ in range(SCRAPES):
        time.sleep(0.26)  # or they would share a gathering
        seconds.append(agent.scrape().seconds * 1000)
    agent_cpu, sensor_cpu = (
        (_cpu(pid) - before) / SCRAPES * 1000
        for pid, before in zip((agent.pid, sensing.pid), used, strict=True)
    )
    p50, p99 = statistics.median(seconds), sorted(seconds)[int(SCRAPES * 0.99) - 1]
    memory = _memory(agent.pid)
    text = (
        f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, CPU a scrape {agent_cpu:.1f} ms (and sensor, with its looks, "
        f"{sensor_cpu:.1f}); agent RSS {memory['VmRSS']:.1f} MB, of it anonymous {memory['RssAnon']:.1f} MB"
    )
    figures.record("scrapes", server.name, text, p50_ms=p50, p99_ms=p99, cpu_ms=agent_cpu, **memory)

    assert agent_cpu < 25  # wall times are the machine's, of which these tests are not alone
    assert memory["VmRSS"] < 60


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int) -> dict[str, float]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    told = dict(line.split(":", 1) for line in lines)
    return {name: int(told[name].split()[0]) / 1024 for name in ("VmRSS", "RssAnon")}


def _looks(agent: Running) -> int:
    status, body, *_ = agent.get("/api/stacks?format=json")
    looks: int = json.loads(body)["looks"] if status == 200 else 0
    return looks


def test_stacks_in_every_format(scene: tuple[Server, Running, Sensing]) -> None:
    _, agent, _ = scene
    deadline = time.monotonic() + PATIENCE_S
    while b"row lock" not in (body := agent.get("/api/stacks?from=-5m")[1]) or _looks(agent) < 2:
        assert time.monotonic() < deadline, body
        time.sleep(0.5)
    assert agent.get("/api/stacks?format=tree")[0] == 200
    assert b";" in agent.get("/api/stacks?format=folded")[1]
    assert json.loads(agent.get("/api/stacks?format=speedscope")[1])["profiles"]
    assert gzip.decompress(agent.get("/api/stacks?format=pprof")[1])
    assert agent.get("/api/stacks?format=html")[1].lower().startswith(b"<!doctype html")
    for query, words in (
        ("format=doc", b"format= is one of"),
        ("server=x", b"server= is one of"),
        ("from=soon", b"no time"),
    ):
        status, body = agent.get(f"/api/stacks?{query}")
        assert status == 400
        assert words in body


def test_pages_for_people_and_probes(scene: tuple[Server, Running, Sensing]) -> None:
    server, agent, _ = scene
    page = agent.get("/")[1].decode()

    assert server.version.split("-")[0] in page
    assert '<span class="good">up</span>' in page
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
def test_a_real_prometheus_scrapes_it_over_tls_with_a_password(
    name: str, server: Any, certificate: Path
) -> None:
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
        assert prometheus.value("up") == 1
        assert prometheus.value("innoscope_sql_up") == 1
        assert prometheus.value("innoscope_mysqld_up") == 1
        assert prometheus.value("innoscope_sensor_up") == 1
        assert prometheus.value('innoscope_threads{wait="background_idle"}') > 0
        assert prometheus.value("rate(innoscope_statements_total[30s])") > 0
        assert 0 < prometheus.value("scrape_samples_scraped") <= 3000
        metadata = prometheus.get("/api/v1/metadata")
        assert metadata["innoscope_statements"][0]["type"] == "counter"
        assert metadata["innoscope_buffer_pool_pages"][0]["help"].startswith("Pages of the buffer pool")
