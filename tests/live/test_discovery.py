"""Test that the example configurations for service discovery are valid.

The examples give agents the labels that the dashboards need. Debian's Prometheus is built without Consul and
Kubernetes, so promtool checks these examples with file_sd_configs instead of their own discovery block.
VictoriaMetrics, which parses the same configuration strictly, checks the discovery blocks.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from certificates import self_signed
from innoscope.metrics import registry
from servers import cache
from servers.debian import unpack_packages

HERE = Path(__file__).parents[2] / "dashboards" / "discovery"
#: promtool collects targets for exactly this long.
DISCOVERY_S = 10
SAMPLES = ("file_sd", "consul", "kubernetes", "drop")


@pytest.fixture(params=SAMPLES)
def sample(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Copy a sample and create the files that it refers to; return the path of the sample's copy."""
    self_signed(tmp_path, "innoscope-")
    (tmp_path / "innoscope-cert.pem").rename(tmp_path / "innoscope-ca.pem")
    (tmp_path / "innoscope.password").write_text("secret\n")
    (tmp_path / "innoscope").mkdir()
    shutil.copy(HERE / "targets.yaml", tmp_path / "innoscope")
    file = tmp_path / f"{request.param}.yaml"
    text = (HERE / file.name).read_text()
    file.write_text(text.replace("/etc/prometheus/", f"{tmp_path}/"))
    return file


def test_promtool_accepts_the_sample(sample: Path) -> None:
    data = yaml.safe_load(sample.read_text())
    (job,) = data["scrape_configs"]
    for kind in ("consul_sd_configs", "kubernetes_sd_configs"):
        if job.pop(kind, None):
            job["file_sd_configs"] = [{"files": [f"{sample.parent}/innoscope/*.yaml"]}]
            sample.write_text(yaml.safe_dump(data))
    _run("promtool", "check", "config", str(sample))
    assert job["job_name"] == "innoscope"


def test_victoria_metrics_accepts_the_sample(sample: Path) -> None:
    strictly = "-promscrape.config.strictParse"
    data = f"-storageDataPath={sample.parent}/data"
    _run(str(_victoria_metrics()), f"-promscrape.config={sample}", strictly, data, "-dryRun")


@pytest.mark.parametrize("sample", ["file_sd"], indirect=True)
def test_agents_get_their_labels(sample: Path) -> None:
    targets = json.loads(
        _run("promtool", "check", "service-discovery", f"--timeout={DISCOVERY_S}s", str(sample), "innoscope")
    )
    # promtool does not preserve the order of the groups in the file
    found = sorted((_labels(one) for one in targets), key=lambda one: one["instance"])

    assert [(one["job"], one["instance"], one["cluster"]) for one in found] == [
        ("innoscope", "db1.example.net:9977", "orders"),
        ("innoscope", "db2.example.net:9977", "orders"),
        ("innoscope", "db3.example.net:9977", "users"),
    ]
    assert {one["__scheme__"] for one in found} == {"https"}
    assert {one["__metrics_path__"] for one in found} == {"/metrics"}


def _labels(target: dict[str, Any]) -> dict[str, str]:
    labels: dict[str, str] = target["labels"]
    return {**target["discoveredLabels"], **labels}


def test_consul_service_matches_the_sample() -> None:
    service = json.loads((HERE / "innoscope-service.json").read_text())["service"]
    (job,) = yaml.safe_load((HERE / "consul.yaml").read_text())["scrape_configs"]
    wanted = {label for rule in job["relabel_configs"] for label in rule["source_labels"]}

    assert job["consul_sd_configs"][0]["services"] == [service["name"]]
    assert {f"__meta_consul_service_metadata_{key}" for key in service["meta"]} <= wanted


def test_dropped_metrics_exist_and_are_not_too_many() -> None:
    (job,) = yaml.safe_load((HERE / "drop.yaml").read_text())["scrape_configs"]
    names = {
        name: metric.most_series
        for metric in registry.default()
        for name in [metric.exported + ("_bucket" if metric.kind == "histogram" else "")]
    }
    for rule in job["metric_relabel_configs"]:
        assert any(re.fullmatch(rule["regex"], name) for name in names), rule
        assert not re.fullmatch(rule["regex"], "innoscope_fsync_seconds_bucket")
    dropped = [
        name for name in names for rule in job["metric_relabel_configs"] if re.fullmatch(rule["regex"], name)
    ]
    assert 0.3 < sum(names[name] for name in dropped) / sum(names.values()) < 0.8


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _victoria_metrics() -> Path:
    """Unpack Debian's package into the cache; installing it would start a service. Return the path."""
    home = cache.root() / "tools" / "victoria-metrics"
    with cache.locked(home.name):
        if not home.exists():
            with cache.made_whole(home) as scratch:
                unpack_packages(("victoria-metrics",), scratch, scratch)
    return home / "usr/bin/victoria-metrics"
