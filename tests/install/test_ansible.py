"""Check the Ansible role with ansible-lint, and run it twice on Debian 12: the second run changes nothing."""

from __future__ import annotations

import hashlib
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from distribution import environment
from install.machine import Machine
from install.rootfs import clean_root, depends
from install.test_account import PASSWORD
from install.test_installed import SOCKET, UNITS, scrape, start_server, until
from install.test_portable import NEEDED
from scale import long
from servers import cache, fetch
from servers.run import ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from install.conftest import Packages, Portable

pytestmark = pytest.mark.timeout(900)  # the first test may have to build the core

ANSIBLE = Path(__file__).parents[2] / "packaging" / "ansible"
REQUIREMENTS = Path(__file__).with_name("ansible.txt")
#: Packages that the role needs on the host besides Innoscope: a client to create the account, and python3-apt
#: for the module apt.
_BESIDE = ("mariadb-client", "python3-apt")
_SETTINGS = (
    "HOME=/root", "LC_ALL=C.UTF-8", "ANSIBLE_NOCOLOR=1", "ANSIBLE_ROLES_PATH=/srv/ansible/roles",
    "ANSIBLE_LOCAL_TEMP=/tmp/local", "ANSIBLE_REMOTE_TEMP=/tmp/remote",
)  # fmt: skip
_COMMAND = (
    "/srv/tools/bin/python",
    "-m",
    "ansible",
    "playbook",
    "--inventory=localhost,",
    "--connection=local",
)
_RECAP = re.compile(r"^localhost +: ok=(\d+) +changed=(\d+) .* failed=(\d+)", re.MULTILINE)

_MORE = long("ansible-lint checks the role; tests/install/test_installed.py installs the package")


@pytest.fixture(scope="module")
def tools() -> Path:
    return environment.install(REQUIREMENTS, cache.root() / "tools")


class Role:
    """The role with its variables, which Ansible applies to the machine that it runs in."""

    def __init__(self, machine: Machine, **variables: Any) -> None:
        self.machine = machine
        self._variables = variables

    def apply(self, *options: str, failing: bool = False, **changes: Any) -> tuple[int, str]:
        """Apply the role with changed variables. Return the number of changed tasks, and the output."""
        role = {"role": "innoscope", "vars": self._variables | changes}
        play = [{"hosts": "localhost", "gather_facts": True, "roles": [role]}]
        (self.machine.root / "tmp/play.yml").write_text(yaml.safe_dump(play))
        output = self.machine.run("env", *_SETTINGS, *_COMMAND, "/tmp/play.yml", *options, check=False)  # noqa: S108
        recap = _RECAP.search(output)
        assert recap, output
        assert (int(recap[3]) > 0) == failing, output
        return int(recap[2]), output


@pytest.fixture(scope="module")
def role(packages: Packages, tools: Path) -> Iterator[Role]:
    """Yield the role on a machine without Innoscope, on which MySQL 5.6.24 runs."""
    server = fetch("mysql-5.6.24")
    shown = {
        server.home: "/opt/mysql",
        ANSIBLE: "/srv/ansible",
        tools: "/srv/tools",
        packages.deb.parent: "/srv/dist",
    }
    with Machine(clean_root([*depends(packages.deb), *_BESIDE]), shown) as machine:
        start_server(machine, server)
        yield Role(
            machine,
            innoscope_package=f"/srv/dist/{packages.deb.name}",
            innoscope_package_sha256=hashlib.sha256(packages.deb.read_bytes()).hexdigest(),
            innoscope_sql_password=PASSWORD.replace("'", ""),
            innoscope_sql_create_account=True,
            innoscope_sql_socket=f"/{SOCKET}",
            innoscope_sql_admin_options=["--user=root"],
        )


@pytest.fixture(scope="module")
def checked(role: Role) -> tuple[Role, int]:
    """Apply the role in check mode, before anything is installed; return the number of changes."""
    before = role.machine.files()
    changed, _ = role.apply("--check", "--diff")
    assert {line for line in role.machine.files() ^ before if "/root/.ansible" not in line} == set()
    return role, changed


@pytest.fixture(scope="module")
def applied(checked: tuple[Role, int]) -> tuple[Role, str]:
    """Apply the role for the first time, and return its output."""
    role, _ = checked
    _, output = role.apply("--diff")
    return role, output


def test_role_and_example_pass_ansible_lint(tools: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [tools / "bin/ansible-lint", "--offline", "--nocolor", "--strict", "--profile=production"],
        cwd=ANSIBLE,
        env=ENVIRONMENT
        | {"HOME": str(tmp_path), "LC_ALL": "C.UTF-8", "PATH": f"{tools}/bin:{ENVIRONMENT['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@_MORE
def test_check_mode_predicts_changes_and_makes_none(checked: tuple[Role, int]) -> None:
    assert checked[1] > 0


@_MORE
def test_first_run_installs_and_starts(applied: tuple[Role, str]) -> None:
    role, output = applied
    for unit in UNITS:
        assert role.machine.show(unit, "ActiveState") == "active"
        assert role.machine.run("systemctl", "is-enabled", unit).strip() == "enabled"
    until(lambda: scrape(role.machine).get(("innoscope_sql_up",)) == 1, role.machine)
    assert role.machine.run("stat", "--format=%a %U:%G", "/etc/innoscope/my.cnf") == "640 root:innoscope\n"
    assert PASSWORD.replace("'", "") not in output


@_MORE
def test_second_run_changes_nothing(applied: tuple[Role, str]) -> None:
    role, _ = applied
    started = [role.machine.show(unit, "ExecMainStartTimestampMonotonic") for unit in UNITS]

    assert role.apply()[0] == 0
    assert [role.machine.show(unit, "ExecMainStartTimestampMonotonic") for unit in UNITS] == started


@_MORE
def test_changed_configuration_restarts_the_agent(applied: tuple[Role, str]) -> None:
    role, _ = applied
    sensor, agent = (role.machine.show(unit, "MainPID") for unit in UNITS)
    changed = '[sql]\ndefaults_file = "/etc/innoscope/my.cnf"\n[log]\nformat = "json"\n'

    assert role.apply("--check", innoscope_agent_toml=changed)[0] > 0
    assert role.machine.show(UNITS[1], "MainPID") == agent
    role.apply(innoscope_agent_toml=changed)
    assert role.machine.show(UNITS[0], "MainPID") == sensor
    assert role.machine.show(UNITS[1], "MainPID") != agent
    assert (role.machine.root / "etc/innoscope/agent.toml").read_text() == changed


@_MORE
def test_invalid_configuration_is_refused(applied: tuple[Role, str]) -> None:
    role, _ = applied
    before = (role.machine.root / "etc/innoscope/agent.toml").read_text()

    _, output = role.apply(failing=True, innoscope_agent_toml="[sql]\nusr = 1\n")
    assert "usr" in output
    assert (role.machine.root / "etc/innoscope/agent.toml").read_text() == before


@_MORE
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"innoscope_package_sha256": "0" * 64}, "SHA-256 is not 000"),
        ({"innoscope_package": "https://localhost/a.deb", "innoscope_package_sha256": ""}, "a URL needs"),
        ({"innoscope_sql_password": 'a"b'}, "Assertion failed|output has been hidden"),
        ({"innoscope_sql_password": "another"}, "run DROP USER"),
    ],
    ids=["checksum", "url", "quotation mark", "other password"],
)
def test_wrong_variables_are_refused(
    applied: tuple[Role, str], changes: dict[str, str], message: str
) -> None:
    _, output = applied[0].apply(failing=True, **changes)
    assert re.search(message, output), output


@long("test_first_run_installs_and_starts, with the .deb")
def test_role_downloads_and_installs_the_archive(portable: Portable, tools: Path) -> None:
    """Install the .tar.gz from a URL on a host that has only Python, libelf and systemd."""
    server = fetch("mysql-5.6.24")
    shown = {
        server.home: "/opt/mysql",
        ANSIBLE: "/srv/ansible",
        tools: "/srv/tools",
        portable.tar.parent: "/srv/dist",
    }
    with Machine(clean_root(NEEDED), shown) as machine:
        start_server(machine, server)
        web = ["python3", "-m", "http.server", "--bind=127.0.0.1", "--directory=/srv/dist", "8000"]
        machine.run("systemd-run", "--quiet", "--unit=web", *web)
        role = Role(
            machine,
            innoscope_package=f"http://127.0.0.1:8000/{portable.tar.name}",
            innoscope_package_sha256=hashlib.sha256(portable.tar.read_bytes()).hexdigest(),
        )
        role.apply("--check")
        role.apply()

        until(lambda: scrape(machine).get(("innoscope_sensor_up",)) == 1, machine)
        assert machine.show(UNITS[0], "User") == "innoscope-sensor"
        assert role.apply()[0] == 0
        role.apply(failing=True, innoscope_package_sha256="0" * 64)
