"""Test that the systemd units deny what the daemons do not need, and that both daemons work under them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from innoscope.probes import capabilities as probes_capabilities
from innoscope.target.proc import ProcFs
from safety.agenting import Running
from safety.command import INNOSCOPE
from safety.leftovers import orphans
from safety.sensing import Sensing, outcome, values
from safety.units import (
    FOLDER,
    ROOT,
    Unit,
    command_line,
    confined,
    python,
    sensor_folder,
    temporary_accounts,
)
from safety.well import assert_well

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from innoscope.daemon.protocol.messages import ServerReply
    from safety.units import Accounts
    from servers import Server

UNITS = ("sensor", "agent")
DROP_IN = FOLDER / "sys-admin.conf"
#: Two servers: one runs as root in the host's root directory. The other is stripped, and runs as another user
#: in a chroot.
SERVERS = ("mysql-5.6.24", "mysql-9.7")
#: linux/capability.h
NUMBERS = {
    "CAP_DAC_READ_SEARCH": 2, "CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21, "CAP_PERFMON": 38, "CAP_BPF": 39,
    "CAP_CHECKPOINT_RESTORE": 40,
}  # fmt: skip
_SECCOMP_FILTER = "2"


@pytest.fixture(scope="module")
def accounts() -> Iterator[Accounts]:
    with temporary_accounts() as accounts:
        yield accounts


@pytest.fixture
def place(accounts: Accounts) -> Iterator[Path]:
    with sensor_folder(accounts) as path:
        yield path


def mask(unit: Unit) -> int:
    return sum(1 << NUMBERS[name] for name in unit.capabilities)


def zeros(pid: int) -> int:
    """Return the address of eight zero bytes: every process has them at the end of its main stack."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    (stack,) = (line for line in maps if line.endswith("[stack]"))
    return int(stack.split()[0].split("-")[1], 16) - 8


@pytest.mark.parametrize("name", UNITS)
def test_systemd_accepts_the_units(name: str, tmp_path: Path) -> None:
    unit = Unit.named(name)
    copy = tmp_path / unit.path.name
    copy.write_text(unit.path.read_text().replace("/usr/bin/innoscope", INNOSCOPE))
    command = ["systemd-analyze", "--no-pager", "--man=no", "--recursive-errors=no", "verify", str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def analysed(name: str, *options: str) -> str:
    """Return the output of systemd-analyze for a unit file."""
    command = [
        "systemd-analyze",
        "--no-pager",
        "security",
        "--offline=true",
        *options,
        str(Unit.named(name).path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("name", "most"), [("sensor", 2.0), ("agent", 1.5)])
def test_the_exposure_is_low(name: str, most: float) -> None:
    """Check that the exposure level of systemd-analyze, from 0 to 10, is at most ``most``."""
    analysed(name, f"--threshold={most * 10:.0f}")


@pytest.mark.parametrize(("name", "column"), [("sensor", 2), ("agent", 3)])
def test_remaining_exposures_are_documented(name: str, column: int) -> None:
    """Compare systemd's list of exposures and weights with the table in docs/install.md."""
    checks = json.loads(analysed(name, "--json=short"))
    page = (ROOT / "docs" / "install.md").read_text()
    table = page.partition("| setting | sensor | agent | why it stays |\n")[2].partition("\n\n")[0]
    rows = [re.split(r" *(?<!\\)\| *", line) for line in table.splitlines()[1:]]
    explained = {row[1].strip("`").replace("\\|", "|"): row[column] for row in rows if row[column]}
    left = {
        check["name"]: check["exposure"] for check in checks if check["set"] is False and check["exposure"]
    }

    assert explained == left


@pytest.mark.parametrize("name", UNITS)
def test_filters_deny_all_calls_that_change_other_processes(name: str) -> None:
    unit = Unit.named(name)

    changing = {
        "ptrace", "process_vm_writev", "pidfd_getfd", "process_madvise", "process_mrelease", "kcmp",
        "io_uring_setup", "move_pages", "migrate_pages", "userfaultfd", "open_by_handle_at", "mount",
        "init_module", "setns", "unshare", "io_uring_enter", "keyctl", "reboot", "swapon",
        "settimeofday", "setuid", "iopl",
    }  # fmt: skip
    reading = {"process_vm_readv", "bpf", "perf_event_open"}
    assert not unit.allowed & changing
    assert unit.allowed & reading == (reading if name == "sensor" else set())
    assert (unit["SystemCallErrorNumber"], unit["SystemCallArchitectures"]) == ("EPERM", "native")
    assert unit["NoNewPrivileges"] == "yes"


def tried(unit: Unit, accounts: Accounts, place: Path, pid: int, **changes: object) -> dict[str, str]:
    prefix = confined(unit, accounts, writable=place, **changes)  # type: ignore[arg-type]
    command = python(prefix, "access_attempts_main.py", pid, zeros(pid))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("name", SERVERS)
def test_the_sensor_may_only_read_a_server(
    name: str, server: Callable[[str], Server], accounts: Accounts, place: Path
) -> None:
    unit, one = Unit.named("sensor"), server(name)
    allowed = tried(unit, accounts, place, one.pid)
    without_filter = tried(unit, accounts, place, one.pid, filtered=False)

    reading = dict.fromkeys(("process_vm_readv", "read mem", "read map_files", "read io"), "ok")
    never = {"write mem": "EACCES", "kill": "EPERM"}  # the sensor lacks the capabilities
    by_filter = ("process_vm_writev", "ptrace", "pidfd_getfd")
    assert allowed == reading | never | dict.fromkeys(by_filter, "EPERM") | {"network": "EAFNOSUPPORT"}
    # Only the system call filter denies these calls; the sensor has the capabilities for them.
    assert without_filter == reading | never | dict.fromkeys((*by_filter, "network"), "ok")
    assert_well(one)


def test_the_agent_may_not_read_a_server(
    server: Callable[[str], Server], accounts: Accounts, place: Path
) -> None:
    one = server("mysql-5.6.24")
    allowed = tried(Unit.named("agent"), accounts, place, one.pid)

    assert allowed.pop("network") == "ok"
    assert set(allowed.values()) <= {"EPERM", "EACCES"}
    assert_well(one)


@pytest.mark.parametrize(
    ("capability", "lost"),
    [
        ("CAP_SYS_PTRACE", {"process_vm_readv", "read mem", "read map_files", "read io"}),
        ("CAP_DAC_READ_SEARCH", {"read mem", "read map_files", "read io"}),
        ("CAP_CHECKPOINT_RESTORE", {"read map_files"}),
    ],
)
def test_each_capability_is_needed(
    capability: str, lost: set[str], server: Callable[[str], Server], accounts: Accounts, place: Path
) -> None:
    unit, one = Unit.named("sensor"), server("mysql-9.7")

    def allowed(*less: str) -> set[str]:
        reply = tried(unit, accounts, place, one.pid, less=less)
        return {name for name, result in reply.items() if result == "ok"}

    assert allowed() - allowed(capability) == lost


class Confined(Sensing):
    """The sensor with the restrictions of its unit."""

    #: Long, because memory layouts are read one server at a time, and many servers may run here.
    patience_s = 120

    def __init__(
        self, accounts: Accounts, place: Path, *arguments: str,
        less: tuple[str, ...] = (), more: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        unit = Unit.named("sensor")
        under = command_line(confined(unit, accounts, writable=place, less=less, more=more))
        super().__init__(*unit.command[1:], *arguments, under=under, path=place / "sensor.sock")


def works(reply: ServerReply, *collectors: str) -> bool:
    return all(outcome(reply, name).success for name in collectors)


@pytest.mark.parametrize("name", SERVERS)
def test_the_sensor_works_under_its_unit(
    name: str, server: Callable[[str], Server], accounts: Accounts, place: Path
) -> None:
    unit, one = Unit.named("sensor"), server(name)
    with Confined(accounts, place) as sensing:
        reply = sensing.until(one, lambda reply: works(reply, "process", "waits", "memory", "probes"))
        rows = [row for rows in sensing.client.probes().values() for row in rows]
        seen = ProcFs().status(sensing.pid)
        assert_well(one)
        assert sensing.terminate() == 0
        log = sensing.log

    assert seen["Uid"].split()[0] == str(accounts.user("innoscope-sensor")[0])
    assert [int(seen[name], 16) for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb")] == [mask(unit)] * 4
    assert (seen["Seccomp"], seen["NoNewPrivs"]) == (_SECCOMP_FILTER, "1")
    assert reply.target.version[:2] == ((5, 6) if name == "mysql-5.6.24" else (9, 7))
    assert reply.target.socket == f"{one.folder.inside}/s.sock"
    assert reply.target.port == one.port
    threads = (value for (metric, _), value in values(reply, "waits").items() if metric == "threads")
    assert sum(float(str(value)) for value in threads) > 10
    assert [row for row in rows if row["state"] in ("attached", "sampled")]
    assert "Traceback" not in log, log
    assert not orphans()


@pytest.mark.parametrize("capability", ["CAP_BPF", "CAP_PERFMON"])
def test_without_a_bpf_capability_the_sensor_uses_procfs(
    capability: str, server: Callable[[str], Server], accounts: Accounts, place: Path
) -> None:
    one = server("mysql-5.6.24")
    with Confined(accounts, place, "--no-probes", less=(capability,)) as sensing:
        sensing.until(one, lambda reply: works(reply, "waits"))
        log = sensing.log

    assert f"process {one.pid}: snapshots by method procfs" in log


def test_only_the_drop_in_grants_sys_admin() -> None:
    given = [line for line in DROP_IN.read_text().splitlines() if line and line[0] not in "#["]

    assert "CAP_SYS_ADMIN" not in Unit.named("sensor").capabilities
    assert given == ["CapabilityBoundingSet=CAP_SYS_ADMIN", "AmbientCapabilities=CAP_SYS_ADMIN"]


def test_without_uprobe_links_the_reason_names_the_remedy(
    server: Callable[[str], Server], accounts: Accounts, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use perf events, as on kernels without uprobe links; all collectors except the probes work."""
    monkeypatch.setenv("INNOSCOPE_UPROBES", "events")
    one = server("mysql-5.6.24")
    with Confined(accounts, place) as sensing:
        reply = sensing.until(one, lambda reply: works(reply, "waits", "memory"))
        reply = sensing.until(
            one, lambda reply: not str(outcome(reply, "probes").reason).startswith("timeout")
        )
        rows = [row for rows in sensing.client.probes().values() for row in rows]
        log = sensing.log

    reason = str(outcome(reply, "probes").reason)
    assert reason.startswith("rights: cannot attach probes: this kernel has no uprobe links")
    assert "need CAP_SYS_ADMIN" in reason
    assert probes_capabilities.REMEDY in reason
    assert probes_capabilities.REMEDY in log
    assert not rows


def test_with_the_drop_in_probes_use_perf_events(
    server: Callable[[str], Server], accounts: Accounts, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INNOSCOPE_UPROBES", "events")
    one = server("mysql-5.6.24")
    with Confined(accounts, place, "--only", str(one.pid), more=("CAP_SYS_ADMIN",)) as sensing:
        sensing.until(one, lambda reply: works(reply, "process", "waits", "memory", "probes"))
        rows = [row for rows in sensing.client.probes().values() for row in rows]
        assert_well(one)
        assert sensing.terminate() == 0

    assert "attached" in {row["state"] for row in rows}


def test_the_agent_works_under_its_unit(
    server: Callable[[str], Server], accounts: Accounts, place: Path
) -> None:
    unit, one = Unit.named("agent"), server("mysql-5.6.24")
    under = command_line(confined(unit, accounts, writable=place))
    with (
        Confined(accounts, place, "--no-probes") as sensing,
        Running(one, sensor=sensing.path, options=('user = "root"',), under=under) as agent,
    ):
        scrape = agent.until(
            lambda scrape: (
                scrape.value("sql_up") == 1
                and bool(scrape.value("threads", wait="background_idle", kind="background"))
            )
        )
        seen = ProcFs().status(agent.pid)
        assert_well(one)
        assert agent.terminate() == 0
        log = agent.log

    assert (scrape.value("sensor_up"), scrape.value("mysqld_up")) == (1, 1)
    assert seen["Uid"].split()[0] == str(accounts.user("innoscope")[0])
    assert [int(seen[name], 16) for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb")] == [0] * 4
    assert (seen["Seccomp"], seen["NoNewPrivs"]) == (_SECCOMP_FILTER, "1")
    assert "Traceback" not in log, log


def test_the_agents_unit_reads_the_shipped_configuration() -> None:
    assert Unit.named("agent").command == ["agent", "--config.file", "/etc/innoscope/agent.toml"]
    assert (ROOT / "packaging" / "agent.toml").is_file()
    assert FOLDER.is_dir()


def test_our_bpf_programs_neither_write_to_processes_nor_signal_them() -> None:
    """Search the sources, because the sensor's capabilities and filter do not deny all such BPF functions."""
    sources = {path: path.read_text() for path in (ROOT / "probes").rglob("*.[ch]")}
    changing = "bpf_(probe_write|send_signal|override_return|copy_to_user)|fmod_ret|lsm[./]|struct_ops"

    assert len(sources) > 5
    assert not [path for path, text in sources.items() if re.search(changing, text)]


#: BPF instructions, loaded but never attached: r1 = 9 (SIGKILL); call bpf_send_signal; r0 = 0; exit.
_SEND_SIGNAL = bytes.fromhex("b701000009000000 850000006d000000 b700000000000000 9500000000000000")
_LOAD = """
import os, sys
from innoscope import _native
try:
    os.close(_native.load_uprobe_program("signal", bytes.fromhex(sys.argv[1]), []))
    print("accepted")
except _native.NativeError as error:
    print(*error.args[:1])
"""


@pytest.mark.parametrize(
    ("less", "outcome"), [((), "accepted"), (("CAP_BPF",), "rights"), (("CAP_PERFMON",), "rights")]
)
def test_a_compromised_sensor_could_signal_a_server(
    less: tuple[str, ...], outcome: str, accounts: Accounts, place: Path
) -> None:
    """Check what docs/security.md says: CAP_BPF with CAP_PERFMON allows BPF programs that send signals."""
    prefix = confined(Unit.named("sensor"), accounts, writable=place, less=less)
    command = [*prefix, str(Path(sys.executable).resolve()), "-B", "-c", _LOAD, _SEND_SIGNAL.hex()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert done.stdout.split() == [outcome]
