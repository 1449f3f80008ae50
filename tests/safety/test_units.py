"""The units: what their filters and capabilities deny, and that both daemons do their work under them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from innoscope.probes import capabilities as probes_capabilities
from safety.agenting import Running
from safety.command import INNOSCOPE
from safety.leftovers import orphans
from safety.sensing import Sensing, of_pid, outcome, values
from safety.units import FOLDER, ROOT, Accounts, Unit, command_line, confined, python
from safety.well import assert_well

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from innoscope.daemon.protocol.messages import ServerReply
    from servers import Server

UNITS = ("sensor", "agent")
DROP_IN = FOLDER / "sys-admin.conf"
#: By its own user and in this root, as root; by another user in another root. The second is stripped.
SERVERS = ("mysql-5.6.24", "mysql-9.7")
#: The memory of a server is learnt once, one server at a time, and this machine may have many.
PATIENCE_S = 120
#: linux/capability.h
NUMBERS = {
    "CAP_DAC_READ_SEARCH": 2, "CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21, "CAP_PERFMON": 38, "CAP_BPF": 39,
    "CAP_CHECKPOINT_RESTORE": 40,
}  # fmt: skip
_SECCOMP_FILTER = "2"


@pytest.fixture(scope="module")
def accounts() -> Iterator[Accounts]:
    with tempfile.TemporaryDirectory(prefix="innoscope-users-") as folder:
        yield Accounts(Path(folder))


@pytest.fixture
def place(accounts: Accounts) -> Iterator[Path]:
    """What systemd would make for the sensor: a folder of its own that all may look into."""
    with tempfile.TemporaryDirectory(prefix="innoscope-unit-") as folder:
        path = Path(folder)
        path.chmod(0o755)
        os.chown(path, *accounts.user("innoscope-sensor"))
        yield path


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: text.strip() for name, text in (line.split(":", 1) for line in lines)}


def mask(unit: Unit) -> int:
    return sum(1 << NUMBERS[name] for name in unit.capabilities)


def zeros(pid: int) -> int:
    """Where every process has eight bytes of zeros for good: the end of its first stack."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    (stack,) = (line for line in maps if line.endswith("[stack]"))
    return int(stack.split()[0].split("-")[1], 16) - 8


@pytest.mark.parametrize("name", UNITS)
def test_systemd_has_nothing_against_it(name: str, tmp_path: Path) -> None:
    unit = Unit.named(name)
    copy = tmp_path / unit.path.name
    copy.write_text(unit.path.read_text().replace("/usr/bin/innoscope", INNOSCOPE))
    command = ["systemd-analyze", "--no-pager", "--man=no", "--recursive-errors=no", "verify", str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def analysed(name: str, *options: str) -> str:
    """What systemd-analyze says of a unit's file."""
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
def test_little_is_left_open(name: str, most: float) -> None:
    """Of 10, as systemd counts it."""
    analysed(name, f"--threshold={most * 10:.0f}")


@pytest.mark.parametrize(("name", "column"), [("sensor", 2), ("agent", 3)])
def test_what_is_left_open_is_explained(name: str, column: int) -> None:
    """Each point that systemd counts has a row in docs/install.md, with its weight, and no other has."""
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
def test_its_filter_allows_nothing_that_changes_another_process(name: str) -> None:
    unit = Unit.named(name)

    changing = {
        "ptrace", "process_vm_writev", "pidfd_getfd", "process_madvise", "process_mrelease", "kcmp",
        "io_uring_setup", "move_pages", "migrate_pages", "userfaultfd", "open_by_handle_at", "mount",
        "init_module", "setns", "unshare", "io_uring_enter", "keyctl", "reboot", "swapon",
        "settimeofday", "setuid", "iopl",
    }  # fmt: skip
    looking = {"process_vm_readv", "bpf", "perf_event_open"}
    assert not unit.allowed & changing
    assert unit.allowed & looking == (looking if name == "sensor" else set())
    assert (unit["SystemCallErrorNumber"], unit["SystemCallArchitectures"]) == ("EPERM", "native")
    assert unit["NoNewPrivileges"] == "yes"


def tried(unit: Unit, accounts: Accounts, place: Path, pid: int, **changes: object) -> dict[str, str]:
    prefix = confined(unit, accounts, writable=place, **changes)  # type: ignore[arg-type]
    command = python(prefix, "reaching_main.py", pid, zeros(pid))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("name", SERVERS)
def test_the_sensor_may_read_a_server_and_do_nothing_else_to_it(
    name: str, server: Callable[[str], Server], accounts: Accounts, place: Path
) -> None:
    unit, one = Unit.named("sensor"), server(name)
    may = tried(unit, accounts, place, one.pid)
    without_filter = tried(unit, accounts, place, one.pid, filtered=False)

    reading = dict.fromkeys(("process_vm_readv", "read mem", "read map_files", "read io"), "ok")
    never = {"write mem": "EACCES", "kill": "EPERM"}  # by its user and capabilities alone
    by_filter = ("process_vm_writev", "ptrace", "pidfd_getfd")
    assert may == reading | never | dict.fromkeys(by_filter, "EPERM") | {"network": "EAFNOSUPPORT"}
    # it is the filter that denies those: the capabilities would let them pass
    assert without_filter == reading | never | dict.fromkeys((*by_filter, "network"), "ok")
    assert_well(one)


def test_the_agent_may_not_even_read(
    server: Callable[[str], Server], accounts: Accounts, place: Path
) -> None:
    one = server("mysql-5.6.24")
    may = tried(Unit.named("agent"), accounts, place, one.pid)

    assert may.pop("network") == "ok"
    assert set(may.values()) <= {"EPERM", "EACCES"}
    assert_well(one)


@pytest.mark.parametrize(
    ("capability", "lost"),
    [
        ("CAP_SYS_PTRACE", {"process_vm_readv", "read mem", "read map_files", "read io"}),
        ("CAP_DAC_READ_SEARCH", {"read mem", "read map_files", "read io"}),
        ("CAP_CHECKPOINT_RESTORE", {"read map_files"}),
    ],
)
def test_what_each_capability_is_for(
    capability: str, lost: set[str], server: Callable[[str], Server], accounts: Accounts, place: Path
) -> None:
    unit, one = Unit.named("sensor"), server("mysql-9.7")

    def allowed(*less: str) -> set[str]:
        told = tried(unit, accounts, place, one.pid, less=less)
        return {name for name, result in told.items() if result == "ok"}

    assert allowed() - allowed(capability) == lost


class Confined(Sensing):
    """The sensor as its unit runs it."""

    def __init__(
        self, accounts: Accounts, place: Path, *arguments: str,
        less: tuple[str, ...] = (), more: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        unit = Unit.named("sensor")
        under = command_line(confined(unit, accounts, writable=place, less=less, more=more))
        super().__init__(*unit.command[1:], *arguments, under=under, path=place / "sensor.sock")


def until(sensing: Sensing, server: Server, holds: Callable[[ServerReply], bool]) -> ServerReply:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        told = of_pid(sensing.client.collect(), server.pid)
        if told is not None and holds(told):
            return told
        assert time.monotonic() < deadline, f"never so: {told}\n{sensing.log}"
        time.sleep(0.05)


def works(told: ServerReply, *collectors: str) -> bool:
    return all(outcome(told, name).success for name in collectors)


@pytest.mark.parametrize("name", SERVERS)
def test_the_sensor_does_its_work_under_its_unit(
    name: str, server: Callable[[str], Server], accounts: Accounts, place: Path
) -> None:
    unit, one = Unit.named("sensor"), server(name)
    with Confined(accounts, place) as sensing:
        told = until(sensing, one, lambda told: works(told, "process", "waits", "memory", "probes"))
        rows = [row for rows in sensing.client.probes().values() for row in rows]
        seen = status(sensing.pid)
        assert_well(one)
        assert sensing.terminate() == 0
        log = sensing.log

    assert seen["Uid"].split()[0] == str(accounts.user("innoscope-sensor")[0])
    assert [int(seen[name], 16) for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb")] == [mask(unit)] * 4
    assert (seen["Seccomp"], seen["NoNewPrivs"]) == (_SECCOMP_FILTER, "1")
    assert told.target.version[:2] == ((5, 6) if name == "mysql-5.6.24" else (9, 7))
    assert told.target.socket == f"{one.folder.inside}/s.sock"
    assert told.target.port == one.port
    threads = (value for (metric, _), value in values(told, "waits").items() if metric == "threads")
    assert sum(float(str(value)) for value in threads) > 10
    assert [row for row in rows if row["state"] in ("attached", "sampled")]
    assert "Traceback" not in log, log
    assert not orphans()


@pytest.mark.parametrize("capability", ["CAP_BPF", "CAP_PERFMON"])
def test_looks_need_both_of_theirs(
    capability: str, server: Callable[[str], Server], accounts: Accounts, place: Path
) -> None:
    one = server("mysql-5.6.24")
    with Confined(accounts, place, "--no-probes", less=(capability,)) as sensing:
        told = until(sensing, one, lambda told: "first look" not in str(outcome(told, "waits").reason))

    assert not works(told, "waits")


def test_the_unit_has_no_sys_admin_and_the_drop_in_gives_only_that() -> None:
    given = [line for line in DROP_IN.read_text().splitlines() if line and line[0] not in "#["]

    assert "CAP_SYS_ADMIN" not in Unit.named("sensor").capabilities
    assert given == ["CapabilityBoundingSet=CAP_SYS_ADMIN", "AmbientCapabilities=CAP_SYS_ADMIN"]


def test_without_links_there_are_no_probes_and_the_reason_names_the_remedy(
    server: Callable[[str], Server], accounts: Accounts, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on kernels without uprobe links; everything else goes on."""
    monkeypatch.setenv("INNOSCOPE_UPROBES", "events")
    one = server("mysql-5.6.24")
    with Confined(accounts, place) as sensing:
        told = until(sensing, one, lambda told: works(told, "waits", "memory"))
        told = until(sensing, one, lambda told: not str(outcome(told, "probes").reason).startswith("timeout"))
        rows = [row for rows in sensing.client.probes().values() for row in rows]
        log = sensing.log

    reason = str(outcome(told, "probes").reason)
    assert reason.startswith("rights: cannot attach probes: this kernel has no uprobe links")
    assert "need CAP_SYS_ADMIN" in reason
    assert probes_capabilities.REMEDY in reason
    assert probes_capabilities.REMEDY in log
    assert not rows


def test_with_the_drop_in_probes_go_by_events(
    server: Callable[[str], Server], accounts: Accounts, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INNOSCOPE_UPROBES", "events")
    one = server("mysql-5.6.24")
    with Confined(accounts, place, more=("CAP_SYS_ADMIN",)) as sensing:
        until(sensing, one, lambda told: works(told, "process", "waits", "memory", "probes"))
        rows = [row for rows in sensing.client.probes().values() for row in rows]
        assert_well(one)
        assert sensing.terminate() == 0

    assert "attached" in {row["state"] for row in rows}


def test_the_agent_does_its_work_under_its_unit_beside_the_sensor(
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
                scrape.value("sql_up") == 1 and bool(scrape.value("threads", wait="background_idle"))
            )
        )
        seen = status(agent.pid)
        assert_well(one)
        assert agent.terminate() == 0
        log = agent.log

    assert (scrape.value("sensor_up"), scrape.value("mysqld_up")) == (1, 1)
    assert seen["Uid"].split()[0] == str(accounts.user("innoscope")[0])
    assert [int(seen[name], 16) for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb")] == [0] * 4
    assert (seen["Seccomp"], seen["NoNewPrivs"]) == (_SECCOMP_FILTER, "1")
    assert "Traceback" not in log, log


def test_the_agents_unit_reads_the_configuration_that_we_ship() -> None:
    assert Unit.named("agent").command == ["agent", "--config.file", "/etc/innoscope/agent.toml"]
    assert (ROOT / "packaging" / "agent.toml").is_file()
    assert FOLDER.is_dir()


def test_no_program_of_ours_writes_to_a_process_or_signals_it() -> None:
    """The sensor's capabilities would allow some of it (docs/security.md), and no filter sees BPF calls."""
    sources = {path: path.read_text() for path in (ROOT / "probes").rglob("*.[ch]")}
    changing = "bpf_(probe_write|send_signal|override_return|copy_to_user)|fmod_ret|lsm[./]|struct_ops"

    assert len(sources) > 5
    assert not [path for path, text in sources.items() if re.search(changing, text)]


#: BPF instructions: r1 = 9 (SIGKILL); call bpf_send_signal; r0 = 0; exit. Loaded, never attached.
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
def test_a_sensor_that_is_taken_over_could_signal_a_server(
    less: tuple[str, ...], outcome: str, accounts: Accounts, place: Path
) -> None:
    """docs/security.md says so: both capabilities together allow a BPF program that sends signals."""
    prefix = confined(Unit.named("sensor"), accounts, writable=place, less=less)
    command = [*prefix, str(Path(sys.executable).resolve()), "-B", "-c", _LOAD, _SEND_SIGNAL.hex()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert done.stdout.split() == [outcome]
