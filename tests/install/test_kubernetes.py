"""Check the Helm chart and the plain manifests, which are the chart's output."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from container import image
from innoscope.daemon.agent.config import load
from innoscope.target import allowed_users
from install.seccomp_profile import profile
from manifests import helm, kubeconform
from scale import long

pytestmark = [
    long("building helm takes several minutes, and the chart changes rarely"),
    pytest.mark.timeout(1800),
]

FOLDER = Path(__file__).parents[2] / "packaging/kubernetes"
CHART = FOLDER / "chart"
UNIT = FOLDER.parent / "systemd/innoscope-sensor.service"
PROJECT = FOLDER.parents[1] / "pyproject.toml"
FORMS = {
    "daemonset.yaml": (),
    "sidecar.yaml": ("--set=daemonset.enabled=false", "--set=sidecar.example=true"),
}
#: Values that make the chart render all its parts.
ALL = (
    "--set=sidecar.example=true", "--set=sensor.sysAdmin=true", "--set=secretName=innoscope",
    "--set=daemonset.priorityClassName=system-node-critical", "--set=imagePullSecrets[0].name=registry",
    "--set=sensor.args={--budget,0.005}", "--set=agent.args={--log.level,debug}",
    "--set=daemonset.podAnnotations.owner=dba", "--set-string=serversConfig=container_uids = [999]",
    "--set-string=agentConfig=[own]\ncpu_budget = 0.1",
)  # fmt: skip


def render(*options: str) -> str:
    return helm("template", "innoscope", CHART, *options)


def pods(text: str) -> list[dict[str, Any]]:
    """Return the pod specifications in manifests."""
    documents = [one for one in yaml.safe_load_all(text) if one]
    return [one["spec"]["template"]["spec"] for one in documents if "template" in one.get("spec", {})]


def containers(text: str, name: str) -> list[dict[str, Any]]:
    return [one for pod in pods(text) for one in pod["containers"] if one["name"] == name]


def test_chart_has_no_warnings() -> None:
    assert "1 chart(s) linted, 0 chart(s) failed" in helm("lint", "--strict", CHART)


def test_chart_has_the_projects_version() -> None:
    version = tomllib.loads(PROJECT.read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert (chart["version"], chart["appVersion"]) == (version, version)


@pytest.mark.parametrize("name", FORMS)
def test_plain_manifests_are_the_charts_output(name: str) -> None:
    """Compare the files with the chart's output. docs/kubernetes.md shows how to write them again."""
    assert (FOLDER / name).read_text() == render(*FORMS[name])


@pytest.mark.parametrize("options", [*FORMS.values(), ALL])
def test_manifests_match_the_schemas_of_kubernetes(options: tuple[str, ...]) -> None:
    status, report = kubeconform(render(*options))

    assert status == 0, report
    assert re.search(r"Invalid: 0, Errors: 0, Skipped: 0", report), report


def test_unknown_and_invalid_fields_are_detected() -> None:
    """Check that the schemas are strict."""
    text = (FOLDER / "daemonset.yaml").read_text()

    for wrong in (
        text.replace("hostPID: true", "hostPid: true"),
        text.replace("runAsUser: 0", 'runAsUser: "root"'),
        text.replace("readOnlyRootFilesystem", "readOnlyRoot"),
    ):
        assert wrong != text
        assert kubeconform(wrong)[0] != 0


@pytest.mark.parametrize("name", FORMS)
def test_sensor_has_the_capabilities_of_its_unit(name: str) -> None:
    (sensor,) = containers((FOLDER / name).read_text(), "sensor")
    (line,) = re.findall(r"^AmbientCapabilities=(.*)$", UNIT.read_text(), re.MULTILINE)
    context = sensor["securityContext"]

    assert {f"CAP_{one}" for one in context["capabilities"]["add"]} == {
        *line.split(), "CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"
    }  # fmt: skip
    assert context["capabilities"]["drop"] == ["ALL"]
    assert not context["privileged"]
    assert not context["allowPrivilegeEscalation"]
    assert context["readOnlyRootFilesystem"]
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}


@pytest.mark.parametrize("name", FORMS)
def test_agent_has_no_privileges(name: str) -> None:
    (agent,) = containers((FOLDER / name).read_text(), "agent")
    context = agent["securityContext"]

    assert f"{context['runAsUser']}:{context['runAsGroup']}" == image.AGENT
    assert context["runAsNonRoot"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert not context["allowPrivilegeEscalation"]
    assert context["readOnlyRootFilesystem"]


@pytest.mark.parametrize("options", [*FORMS.values(), ALL])
def test_configuration_is_accepted(options: tuple[str, ...], tmp_path: Path) -> None:
    for document in yaml.safe_load_all(render(*options)):
        if document and document["kind"] == "ConfigMap":
            file = tmp_path / "agent.toml"
            file.write_text(document["data"]["agent.toml"])
            assert load(file).web.listen_address == ":9977"
            servers = tmp_path / "servers.toml"
            servers.write_text(document["data"].get("servers.toml", ""))
            allowed_users.load(str(servers))


def test_seccomp_profile_is_the_filter_of_the_unit() -> None:
    stored = json.loads((FOLDER / "seccomp.json").read_text())
    allowed = {name for rule in stored["syscalls"] for name in rule["names"]}

    assert stored == profile()
    assert {"bpf", "perf_event_open", "process_vm_readv"} <= allowed
    assert not {"ptrace", "process_vm_writev", "pidfd_getfd", "open_by_handle_at", "mount", "setns"} & allowed
