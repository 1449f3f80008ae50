"""Build the container image, and run it with podman next to a MySQL server in a pod."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import waiting
from container import __main__ as builder
from distribution.metadata import Metadata
from innoscope.target.proc import ProcFs
from install.podman import Podman
from install.rootfs import clean_root
from scale import long
from servers import ensure_packages, fetch
from servers.debian import date_options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from install.conftest import Packages

pytestmark = [
    long("building the image takes two minutes; the quick suite installs the same .deb on Debian"),
    pytest.mark.timeout(900),
]

UNIT = Path(__file__).parents[2] / "packaging/systemd/innoscope-sensor.service"
SIDECAR = UNIT.parents[1] / "kubernetes/sidecar.yaml"
SECCOMP = UNIT.parents[1] / "kubernetes/seccomp.json"
NAME = "localhost/innoscope:" + Metadata.read().version
#: The image of a pod's first process. With podman's own settings, it would start the image's entry point.
PAUSE = "localhost/pause"
PAGE = "http://127.0.0.1:9977/metrics"
#: What the manifests add to the sensor's own capabilities: setpriv needs them to change the user.
START = ("SETUID", "SETGID", "SETPCAP")
#: From linux/capability.h.
NUMBERS = {"DAC_READ_SEARCH": 2, "SYS_PTRACE": 19, "PERFMON": 38, "BPF": 39, "CHECKPOINT_RESTORE": 40}
SECURITY = ("--security-opt=no-new-privileges", f"--security-opt=seccomp={SECCOMP}")
_MYSQL = 999  # the uid of mysql in Docker's official images
_PATIENCE_S = 60


@dataclass(frozen=True, slots=True)
class Image:
    """The OCI archive and its SBOM."""

    archive: Path
    sbom: Path

    def blob(self, digest: str) -> Any:
        """Return a JSON document in the archive."""
        return self._json(f"blobs/{digest.replace(':', '/')}")

    @property
    def manifest(self) -> dict[str, Any]:
        """Return the image's manifest."""
        found: dict[str, Any] = self.blob(self._json("index.json")["manifests"][0]["digest"])
        return found

    def _json(self, path: str) -> Any:
        with tarfile.open(self.archive) as archive:
            file = archive.extractfile(path)
            assert file is not None
            return json.loads(file.read())


@pytest.fixture(scope="module")
def image(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Image:
    ensure_packages(["buildah", "mmdebstrap"])
    options = tuple(f"--aptopt={option}" for option in date_options())
    out = tmp_path_factory.mktemp("image")
    return Image(*builder.build(packages.deb, Metadata.read(), out, options))


@pytest.fixture(scope="module")
def loaded(image: Image) -> Iterator[Podman]:
    with Podman() as one:
        one.run("load", "--quiet", "--input", image.archive)
        one.run("create", "--name=sleeping", NAME)
        one.run(
            "commit", "--quiet", '--change=ENTRYPOINT ["sh", "-c", "exec sleep infinity"]', "sleeping", PAUSE
        )
        yield one


@pytest.fixture
def podman(loaded: Podman) -> Iterator[Podman]:
    """Yield podman with the images, and remove the test's containers."""
    yield loaded
    loaded.remove()


def capabilities() -> list[str]:
    """Return the sensor's capabilities from its unit."""
    (line,) = re.findall(r"^AmbientCapabilities=(.*)$", UNIT.read_text(), re.MULTILINE)
    return [name.removeprefix("CAP_") for name in line.split()]


def sensor_options() -> list[str]:
    """Return podman's options for the security context that the manifests give the sensor."""
    added = [f"--cap-add={name}" for name in (*capabilities(), *START)]
    return ["--user=0:0", "--cap-drop=ALL", *added, *SECURITY, "--read-only"]


def test_image_is_smaller_than_250_mb(image: Image) -> None:
    """Check the size that a host downloads. Unpacked, LLVM alone, which compiles the probes, takes 230 MB."""
    layers = image.manifest["layers"]

    assert sum(layer["size"] for layer in layers) < 250e6
    assert image.archive.stat().st_size < 250e6


def test_configuration_is_that_of_the_agent(image: Image) -> None:
    document = image.blob(image.manifest["config"]["digest"])
    config, now = document["config"], Metadata.read()
    labels = {key.removeprefix("org.opencontainers.image."): value for key, value in config["Labels"].items()}

    assert config["User"] == "9977:9977"
    assert (config["Entrypoint"], config["Cmd"]) == (["/usr/bin/innoscope"], ["agent"])
    assert (labels["title"], labels["version"], labels["licenses"]) == (now.name, now.version, now.licence)
    assert labels["description"] == now.summary
    assert seconds_of(document["created"]) == now.time


def seconds_of(text: str) -> int:
    """Convert a time stamp of the image to seconds since 1970."""
    date = subprocess.run(["date", "--date", text, "+%s"], capture_output=True, text=True, check=True)
    return int(date.stdout)


def test_list_of_parts_names_all_debian_packages(image: Image, podman: Podman) -> None:
    document = json.loads(image.sbom.read_text())
    refs = [part["bom-ref"] for part in document["components"]]
    show = "${Package}@${Version}?arch=${Architecture}\\n"
    installed = podman.run("run", "--rm", "--entrypoint=dpkg-query", NAME, "--show", f"--showformat={show}")
    packages = {f"pkg:deb/debian/{line}" for line in installed.split()}

    assert document["metadata"]["component"]["type"] == "container"
    assert {ref for ref in refs if ref.startswith("pkg:deb/")} == {
        ref for ref in packages if "/innoscope@" not in ref
    }
    assert any(ref.startswith("pkg:cargo/") for ref in refs)
    assert len(refs) == len(set(refs))


def test_command_runs_as_the_agents_user_on_a_read_only_root(podman: Podman) -> None:
    options = ["run", "--rm", "--read-only", "--cap-drop=ALL", "--network=none"]

    assert "Usage: innoscope " in podman.run(*options, NAME, "--help")
    assert podman.run(*options, "--entrypoint=id", NAME).startswith("uid=9977(innoscope) gid=9977(innoscope)")


def start_server(podman: Podman, folder: Path, shared: str, sockets: Path) -> int:
    """Start MySQL 5.6.24 without privileges, as Docker's official images do, in a pod. Return its pid.

    The containers of the pod share the namespaces ``shared``.
    """
    installed = fetch("mysql-5.6.24")
    data = folder / "data"
    shutil.copytree(installed.template, data, symlinks=True)
    subprocess.run(["chown", "-R", f"{_MYSQL}:{_MYSQL}", data], check=True)
    podman.run(
        "pod", "create", "--name=shop", f"--share={shared}", "--network=none", f"--infra-image={PAUSE}"
    )
    mysqld = ["/opt/mysql/mysqld", "--no-defaults", "--basedir=/opt/mysql", "--datadir=/var/lib/mysql"]
    podman.run(
        "run", "--detach", "--pod=shop", "--name=mysql", f"--user={_MYSQL}:{_MYSQL}", "--cap-drop=ALL",
        f"--volume={installed.home}:/opt/mysql:ro", f"--volume={data}:/var/lib/mysql",
        f"--volume={sockets}:/run/mysqld",
        "--rootfs", f"{clean_root(())}:O", *mysqld, "--socket=/run/mysqld/mysqld.sock",
    )  # fmt: skip
    return podman.pid("mysql")


def folders(parent: Path, *names: str) -> list[Path]:
    """Create directories that all users may write to, like volumes of type emptyDir."""
    found = [parent / name for name in names]
    for one in found:
        one.mkdir()
        one.chmod(0o777)
    return found


def start_sensor(podman: Podman, run: Path, options: list[str], *arguments: object) -> None:
    """Start a sensor with the security context of the manifests. ``options`` are podman's."""
    podman.run(
        "run", "--detach", "--name=sensor", *sensor_options(), "--tmpfs=/tmp",
        "--tmpfs=/var/cache/innoscope-sensor:mode=777", f"--volume={run}:/run/innoscope", *options,
        "--entrypoint=/usr/bin/innoscope-sensor", NAME, *arguments,
    )  # fmt: skip


def start_agent(podman: Podman, run: Path, options: list[str], *arguments: object) -> None:
    """Start an agent with the security context of the manifests. ``options`` are podman's."""
    podman.run(
        "run", "--detach", "--name=agent", "--read-only", "--cap-drop=ALL",
        "--security-opt=no-new-privileges", "--tmpfs=/tmp", "--tmpfs=/var/lib/innoscope-agent:mode=777",
        f"--volume={run}:/run/innoscope:ro",
        *options, NAME, "agent", *arguments,
    )  # fmt: skip


def until_up(podman: Podman, server: str, metric: str = "innoscope_mysqld_up") -> None:
    """Wait until the agent's metric of a server is 1."""
    fetching = f"from urllib.request import urlopen; print(urlopen('{PAGE}').read().decode())"

    def up() -> bool:
        try:
            text = podman.run("exec", "agent", "python3", "-c", fetching)
        except AssertionError:  # the agent does not listen yet
            return False
        samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
        return any(
            one.name == metric and one.labels["server"] == server and one.value == 1 for one in samples
        )

    logs = (podman.logs(name) for name in ("mysql", "sensor", "agent"))
    waiting.until(up, lambda: "\n".join(logs), within_s=_PATIENCE_S, every_s=0.5)


def check_status(podman: Podman) -> None:
    """Check that the sensor's process has the user and the capabilities of its unit."""
    status = Path(f"/proc/{podman.pid('sensor')}/status").read_text()
    assert re.search(r"^Uid:\t9978\t9978\t9978\t9978$", status, re.MULTILINE)
    assert re.search(r"^NoNewPrivs:\t1$", status, re.MULTILINE)
    for kind in ("Prm", "Eff", "Bnd", "Amb"):
        (held,) = re.findall(rf"^Cap{kind}:\t(\w+)$", status, re.MULTILINE)
        assert int(held, 16) == sum(1 << NUMBERS[name] for name in capabilities())


def test_server_in_a_pod_is_seen_by_name(podman: Podman, tmp_path: Path) -> None:
    """Run sensor and agent like the DaemonSet, with a link like the kubelet's for the server's container."""
    links, run, sockets = folders(tmp_path, "links", "run", "sockets")
    server = start_server(podman, tmp_path, "net,ipc", sockets)
    (links / f"shop-0_prod_mysql-{podman.id('mysql')}.log").symlink_to("/var/log/pods/elsewhere")
    host = ["--pid=host", "--network=none"]
    start_sensor(podman, run, [*host, f"--volume={links}:/var/log/containers:ro"], "--only", server)
    start_agent(podman, run, host)

    until_up(podman, "prod/shop-0/mysql")
    check_status(podman)


def test_sidecars_see_the_server_of_their_pod(podman: Podman, tmp_path: Path) -> None:
    """Run sensor and agent in the server's pod, with the configuration in sidecar.yaml."""
    run, sockets = folders(tmp_path, "run", "sockets")
    start_server(podman, tmp_path, "pid,net,ipc", sockets)
    (files,) = (one["data"] for one in yaml.safe_load_all(SIDECAR.read_text()) if one["kind"] == "ConfigMap")
    files["my.cnf"] = "[client]\nuser = root\n"
    volumes = {}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        volumes[name] = f"--volume={tmp_path / name}:/etc/innoscope/{name}:ro"
    start_sensor(podman, run, ["--pod=shop", volumes["servers.toml"]])
    start_agent(
        podman, run,
        ["--pod=shop", f"--volume={sockets}:/run/mysqld", volumes["agent.toml"], volumes["my.cnf"]],
        "--config.file=/etc/innoscope/agent.toml", "--defaults-file=/etc/innoscope/my.cnf",
    )  # fmt: skip

    until_up(podman, "mysql")
    until_up(podman, "mysql", "innoscope_sql_up")
    check_status(podman)


def test_stacks_are_read_with_one_capability_under_the_default_seccomp_profile(
    podman: Podman, tmp_path: Path
) -> None:
    """Run the command in the server's pod with CAP_SYS_PTRACE only. The profile of podman denies BPF."""
    (sockets,) = folders(tmp_path, "sockets")
    server = start_server(podman, tmp_path, "pid,net,ipc", sockets)
    inner = ProcFs().status(server)["NSpid"].split()[-1]
    pod = ["--pod=shop", "--user=0:0", "--cap-drop=ALL", "--cap-add=SYS_PTRACE", "--read-only"]
    dump = json.loads(podman.run("run", "--rm", *pod, NAME, "stacks", "--pid", inner, "--json", "--all"))

    assert dump["method"] == "procfs"
    complete = sum(thread["trust"] in ("exact", "inferred", "on_cpu") for thread in dump["threads"])
    assert complete >= len(dump["threads"]) - 1
