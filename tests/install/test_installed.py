"""Install, run, upgrade and purge the .deb on a clean Debian 12 with systemd.

Each stage is a fixture that builds on the previous one.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

import pymysql
import pytest
from prometheus_client.parser import text_string_to_metric_families

import waiting
from install.conftest import NEXT, Packages
from install.machine import Machine
from install.rootfs import SUITE, clean_root, depends
from install.test_account import PASSWORD, statements
from scale import long
from servers import fetch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from servers.fetch import Installation

pytestmark = pytest.mark.timeout(900)  # the first test may have to build the core

T = TypeVar("T")
UNITS = ("innoscope-sensor.service", "innoscope-agent.service")
SOCKET = "run/mysqld/mysqld.sock"
#: Maximum seconds to wait for the services; compiling the probes takes two seconds even on an idle CPU.
PATIENCE_S = 240
#: Paths that apt, dpkg and useradd write for any package, and the server's data.
FOREIGN = (
    "/var/cache/apt/", "/var/cache/debconf/", "/var/lib/apt/", "/var/log/apt/", "/var/log/dpkg.log",
    "/var/lib/dpkg/", "/var/backups/", "/var/lib/systemd/", "/var/lib/mysql/",
    "/etc/passwd-", "/etc/shadow-", "/etc/group-", "/etc/gshadow-",
)  # fmt: skip
CONFIGURATION = "etc/innoscope/agent.toml"


def until(what: Callable[[], T], machine: Machine) -> T:
    """Wait until ``what`` returns a true value; return it, or fail with the journals of our units."""
    journals = (machine.journal(unit) for unit in UNITS)
    return waiting.until(what, lambda: "\n".join(journals), within_s=PATIENCE_S)


def start_server(machine: Machine, server: Installation) -> None:
    """Start MySQL as a service, under its own user. The server's home is mounted at /opt/mysql."""
    machine.run("useradd", "--system", "mysql")
    shutil.copytree(server.template, machine.root / "var/lib/mysql", symlinks=True)
    machine.run("chown", "-R", "mysql:mysql", "/var/lib/mysql")
    service = ["--quiet", "--unit=mysqld", "--property=User=mysql", "--property=RuntimeDirectory=mysqld"]
    mysqld = ["/opt/mysql/mysqld", "--no-defaults", "--basedir=/opt/mysql", "--datadir=/var/lib/mysql"]
    machine.run("systemd-run", *service, *mysqld, f"--socket=/{SOCKET}", "--bind-address=127.0.0.1")
    until((machine.root / SOCKET).is_socket, machine)


@pytest.fixture(scope="module")
def machine(packages: Packages) -> Iterator[Machine]:
    """Yield a machine without Innoscope, on which MySQL 5.6.24 runs as a service under its own user."""
    server = fetch("mysql-5.6.24")
    with Machine(clean_root(depends(packages.deb)), {server.home: "/opt/mysql"}) as one:
        start_server(one, server)
        yield one


def sql(machine: Machine, *texts: str) -> None:
    with (
        closing(
            pymysql.connect(unix_socket=str(machine.root / SOCKET), user="root", ssl_disabled=True)
        ) as connection,
        connection.cursor() as cursor,
    ):
        for text in texts:
            cursor.execute(text)


@pytest.fixture(scope="module")
def before(machine: Machine) -> tuple[set[str], str]:
    """Return the files and accounts that existed before the installation."""
    return machine.files(), accounts(machine)


def accounts(machine: Machine) -> str:
    return "".join((machine.root / "etc" / name).read_text() for name in ("passwd", "group"))


def install(machine: Machine, deb: object) -> None:
    shutil.copy(str(deb), machine.root / "tmp/innoscope.deb")
    machine.run("apt-get", "install", "--yes", "--quiet", "/tmp/innoscope.deb")  # noqa: S108


@pytest.fixture(scope="module")
def installed(machine: Machine, before: object, packages: Packages) -> Machine:
    del before
    install(machine, packages.deb)
    return machine


@pytest.fixture(scope="module")
def working(installed: Machine) -> Machine:
    """Create the account, then enable and start both services as docs/install.md says."""
    sql(installed, *statements(PASSWORD))
    option_file = installed.root / "etc/innoscope/my.cnf"
    option_file.write_text(f'[client]\nuser = innoscope\npassword = "{PASSWORD}"\n')
    installed.run("chown", "root:innoscope", "/etc/innoscope/my.cnf")
    option_file.chmod(0o640)
    configuration = installed.root / CONFIGURATION
    configuration.write_text(configuration.read_text().replace("# defaults_file =", "defaults_file =", 1))
    installed.run("systemctl", "enable", "--now", *UNITS)
    return installed


@pytest.fixture(scope="module")
def upgraded(working: Machine, packages: Packages) -> Machine:
    install(working, packages.next_deb)
    return working


@pytest.fixture(scope="module")
def purged(upgraded: Machine) -> Machine:
    upgraded.run("apt-get", "purge", "--yes", "--quiet", "innoscope")
    return upgraded


def ours(lines: set[str]) -> set[str]:
    """Return the lines of ``Machine.files`` about files that belong to Innoscope."""
    return {line for line in lines if not line.split(" ", 3)[3].startswith(FOREIGN)}


def scrape(machine: Machine) -> dict[tuple[str, ...], float]:
    """Return the value of each series of /metrics, by name and the values of its labels except ``server``."""
    found = {}
    for family in text_string_to_metric_families(machine.get("/metrics")):
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if name != "server"}
            assert sample.labels.get("server", "3306") == "3306"
            assert (sample.name, *labels.values()) not in found
            found[(sample.name, *labels.values())] = sample.value
    return found


def probes(machine: Machine) -> list[dict[str, object]]:
    """Return the status of each probe that is attached to the server, always or on a duty cycle.

    Return none if the command fails, for example because the sensor does not reply within a second.
    """
    text = machine.run("innoscope", "probes", "status", "--json", check=False)
    (rows,) = json.loads(text).values() or ([],) if text.startswith("{") else ([],)
    return [row for row in rows if row["state"] in ("attached", "sampled")]


def status(machine: Machine, unit: str) -> dict[str, str]:
    pid = machine.show(unit, "MainPID")
    lines = (machine.root / "proc" / pid / "status").read_text().splitlines()
    return {name: text.strip() for name, text in (line.split(":", 1) for line in lines)}


def test_installing_starts_nothing(installed: Machine) -> None:
    for unit in UNITS:
        assert installed.run("systemctl", "is-enabled", unit, check=False).strip() == "disabled"
        assert installed.show(unit, "ActiveState") == "inactive"
    assert installed.run("innoscope", "--version") == "innoscope, version 0.1.0\n"
    assert "/var/lib/mysql" in installed.run("innoscope", "targets")
    assert "innoscope-sensor:" in accounts(installed)
    assert not installed.run("dpkg", "--verify", "innoscope")


def test_every_command_finds_its_libraries(installed: Machine) -> None:
    check_libraries(installed)


def check_libraries(installed: Machine) -> None:
    """Import all libraries and run every command, with only the package's dependencies installed."""
    modules = (
        "bcc, bcrypt, click, msgspec, prometheus_client, pymysql, textual, yaml, innoscope.cli.top.view, "
        "innoscope._native"
    )
    python = "/usr/lib/innoscope/bin/python"
    installed.run(python, "-P", "-c", f"import {modules}")
    assert "py-spy" in installed.run("/usr/lib/innoscope/bin/py-spy", "--version")
    from innoscope.cli.main import COMMANDS

    script = " && ".join(f"innoscope {name} --help >/dev/null" for name in COMMANDS)
    installed.run("sh", "-c", script)


def test_bash_completion_works(installed: Machine) -> None:
    script = (
        ". /usr/share/bash-completion/completions/innoscope; COMP_WORDS=(innoscope sta); COMP_CWORD=1;"
        "_innoscope_completion innoscope; echo ${COMPREPLY[@]}"
    )
    assert installed.run("bash", "-c", script).strip() == "stacks"


def test_probes_are_attached_and_count(working: Machine) -> None:
    until(lambda: len(probes(working)) > 20, working)
    sql(working, "CREATE DATABASE d", "CREATE TABLE d.t (n INT) ENGINE=InnoDB", "INSERT INTO d.t VALUES (1)")

    until(
        lambda: {row["probe"] for row in probes(working) if row["hits"]} >= {"redo_write", "table_open"},
        working,
    )


def test_metrics_are_served_from_all_sources(working: Machine) -> None:
    """Check that all collectors succeed and that no series occurs twice; SQL uses the documented account."""
    collectors = ("sql", "probes", "memory", "waits", "process", "toggles")

    def all_work() -> dict[tuple[str, ...], float]:
        found = scrape(working)
        works = all(found.get(("innoscope_collector_success", name)) == 1 for name in collectors)
        return found if works else {}

    found = until(all_work, working)
    assert found["innoscope_sql_up",] == found["innoscope_sensor_up",] == found["innoscope_mysqld_up",] == 1
    assert found["innoscope_redo_write_seconds_count",] > 0
    threads = [
        value for key, value in found.items() if key[0] == "innoscope_threads" and "background_idle" in key
    ]
    assert sum(threads) > 5


@pytest.mark.parametrize("unit", UNITS)
def test_units_notify_the_watchdog(working: Machine, unit: str) -> None:
    first = working.show(unit, "WatchdogTimestampMonotonic")

    assert working.show(unit, "WatchdogUSec") == "1min"
    until(lambda: working.show(unit, "WatchdogTimestampMonotonic") != first, working)


def test_privileges_and_limits_match_the_units(working: Machine) -> None:
    sensor, agent = (status(working, unit) for unit in UNITS)
    users = {line.split(":")[0]: line.split(":")[2] for line in accounts(working).splitlines()}
    for seen, user, capabilities in ((sensor, "innoscope-sensor", 5), (agent, "innoscope", 0)):
        assert seen["Uid"].split() == [users[user]] * 4
        assert int(seen["CapBnd"], 16).bit_count() == int(seen["CapEff"], 16).bit_count() == capabilities
        assert (seen["Seccomp"], seen["NoNewPrivs"]) == ("2", "1")
    for unit in UNITS:
        assert int(working.show(unit, "MemoryCurrent")) < int(working.show(unit, "MemoryMax")) / 2


def test_upgrade_restarts_running_services(upgraded: Machine) -> None:
    assert NEXT in upgraded.run("dpkg-query", "--show", "innoscope")
    for unit in UNITS:
        assert upgraded.show(unit, "ActiveState") == "active"
        assert upgraded.show(unit, "NRestarts") == "0"
        started = int(upgraded.show(unit, "ExecMainStartTimestampMonotonic"))
        unpacked = (upgraded.root / "var/lib/dpkg/info/innoscope.list").stat().st_mtime
        assert started / 1e6 > unpacked - (time.time() - time.monotonic())
    assert '\ndefaults_file = "/etc/innoscope/my.cnf"' in (upgraded.root / CONFIGURATION).read_text()
    until(lambda: len(probes(upgraded)) > 20, upgraded)
    until(lambda: scrape(upgraded).get(("innoscope_mysqld_up",)) == 1, upgraded)


def test_purge_leaves_nothing(purged: Machine, before: tuple[set[str], str]) -> None:
    files, users = before
    assert ours(purged.files() ^ files) == set()
    assert accounts(purged) == users
    assert "innoscope" not in purged.run("systemctl", "list-units", "--all", "--no-legend")
    assert "innoscope" not in purged.run("sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' '\\n'")
    for place in ("run", "tmp"):  # in memory, not on the disk that files() lists
        names = [path.name for path in (purged.root / place).iterdir() if path.name != "innoscope.deb"]
        assert not [name for name in names if "innoscope" in name]
    sql(purged, "INSERT INTO d.t VALUES (2)")  # a leaked breakpoint would kill the server
    assert purged.show("mysqld", "ActiveState") == "active"


def test_package_installs_without_systemd(packages: Packages) -> None:
    """Install the package as in a container build."""
    install_and_purge(packages, SUITE)


@long("test_package_installs_without_systemd, on Debian 12")
@pytest.mark.parametrize("suite", ["trixie", "sid"])
def test_package_installs_on_newer_releases(packages: Packages, suite: str) -> None:
    """Install the package on Debian 13 and unstable, and run every command."""
    install_and_purge(packages, suite, check_libraries)


def install_and_purge(
    packages: Packages, suite: str, check: Callable[[Machine], None] = lambda machine: None
) -> None:
    with Machine(clean_root(depends(packages.deb), suite), booted=False) as machine:
        files, users = machine.files(), accounts(machine)
        install(machine, packages.deb)
        assert machine.run("innoscope", "--version") == "innoscope, version 0.1.0\n"
        check(machine)
        machine.run("apt-get", "purge", "--yes", "--quiet", "innoscope")

        assert ours(machine.files() ^ files) == set()
        assert accounts(machine) == users


def rpm_command(machine: Machine, database: Path) -> list[str]:
    """Return the start of an rpm command that manages packages in the machine.

    rpm looks for ``database`` below the machine's root.
    """
    return ["rpm", f"--root={machine.root}", f"--dbpath={database}", "--nodeps"]


def test_rpm_installs_and_uninstalls(packages: Packages, tmp_path: Path) -> None:
    """Check the files and scripts. Dependencies are ignored, because the machine runs Debian."""
    with Machine(clean_root(depends(packages.deb)), {packages.rpm.parent: "/srv"}, booted=False) as machine:
        before = machine.files()
        rpm = rpm_command(machine, tmp_path)
        subprocess.run([*rpm, "--install", packages.rpm], check=True, capture_output=True)
        assert machine.run("innoscope", "--version") == "innoscope, version 0.1.0\n"
        subprocess.run([*rpm, "--erase", "innoscope"], check=True, capture_output=True)
        left = {line.split(" ", 3)[3] for line in machine.files() ^ before}
        assert not [path for path in left if "innoscope" in path and "rpm" not in path]
