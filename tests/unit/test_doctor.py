"""The checks of `innoscope doctor` give the right results on synthetic hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from innoscope._native import Feature
from innoscope.cli import main as cli_main
from innoscope.cli.doctor import host, report, server, symbol_packages
from innoscope.cli.doctor.model import (
    PTRACE,
    SNAPSHOTS,
    CheckResult,
    CheckStatus,
    DoctorVerdict,
    fail,
    ok,
    warn,
)
from innoscope.common.errors import NoRights, SqlFailed
from innoscope.probes import capabilities
from innoscope.target import sql
from innoscope.target.credentials import LoginOptions
from innoscope.target.proc import ProcFs
from unit.snapshots import target

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TARGET = target(pid=42, symbols="dynsym")


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., host.DoctorHost]:
    """Return a function that makes a synthetic host from the given files and environment."""

    def make(files: dict[str, str], **environment: str) -> host.DoctorHost:
        for path, text in files.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        return host.DoctorHost(tmp_path, environment)

    return make


@pytest.mark.parametrize(
    ("effective", "status", "words"),
    [
        ("000001ffffffffff", CheckStatus.OK, "all"),
        (
            "0000000000000000",
            CheckStatus.WARN,
            "CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE, CAP_PERFMON, CAP_BPF, CAP_CHECKPOINT_RESTORE",
        ),
        (f"{1 << 21 | 1 << 19 | 1 << 2:016x}", CheckStatus.OK, "all"),
        (f"{1 << 21 | 1 << 19 | 1 << 1:016x}", CheckStatus.OK, "all"),
        (f"{1 << 21 | 1 << 19:016x}", CheckStatus.WARN, "missing CAP_DAC_READ_SEARCH"),
        (f"{1 << 38 | 1 << 39 | 1 << 40 | 1 << 2:016x}", CheckStatus.WARN, "missing CAP_SYS_PTRACE"),
    ],
)
def test_missing_capabilities_are_named(
    write: Callable[..., host.DoctorHost], effective: str, status: CheckStatus, words: str
) -> None:
    check = host.rights(write({"proc/self/status": f"Name:\tx\nCapEff:\t{effective}\n"}))
    assert check.status is status
    assert words in check.detail


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (None, CheckStatus.OK),
        ("[none] integrity confidentiality", CheckStatus.OK),
        ("none [integrity] confidentiality", CheckStatus.OK),
        ("none integrity [confidentiality]", CheckStatus.WARN),
    ],
)
def test_only_the_lockdown_mode_confidentiality_is_reported(
    write: Callable[..., host.DoctorHost], text: str | None, status: CheckStatus
) -> None:
    files = {} if text is None else {"sys/kernel/security/lockdown": text}
    assert host.lockdown(write(files)).status is status


def test_without_btf_or_kernel_memory_only_probes_use_bpf(write: Callable[..., host.DoctorHost]) -> None:
    confidential = write({"sys/kernel/security/lockdown": "none integrity [confidentiality]"})
    for check in (host.btf(confidential), host.lockdown(confidential)):
        assert check.status is CheckStatus.WARN
        assert "snapshots use procfs, profiles use perf events" in check.detail
        assert "no probes" not in check.detail


def test_each_failure_of_a_host_has_a_remedy(
    write: Callable[..., host.DoctorHost], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "_try", lambda _probe: Feature(False, "EPERM"))
    checks = host.examine(write({"proc/sys/kernel/yama/ptrace_scope": "3"}))
    failed = [check for check in checks if check.status is not CheckStatus.OK]
    assert {check.name for check in failed} >= {
        "rights",
        "BTF",
        SNAPSHOTS,
        PTRACE,
        "map_files",
    }
    assert all(check.remedy for check in failed)
    assert any("ptrace_scope = 3" in check.detail for check in failed)


@pytest.mark.parametrize(
    ("works", "status", "words"),
    [
        ({"profile-bpf", "profile-perf"}, CheckStatus.OK, "bpf works"),
        ({"profile-perf", "profile-waits-perf"}, CheckStatus.WARN, "; --off-cpu: profile-waits"),
        (
            {"profile-perf"},
            CheckStatus.WARN,
            "perf works: profile-perf tried; --off-cpu does not work",
        ),
        (set(), CheckStatus.WARN, "perf does not work"),
    ],
)
def test_the_method_of_profiles_is_reported(
    monkeypatch: pytest.MonkeyPatch, works: set[str], status: CheckStatus, words: str
) -> None:
    monkeypatch.setattr(host, "require_host_pids", lambda _action: None)
    monkeypatch.setattr(host, "_try", lambda probe: Feature(probe in works, f"{probe} tried"))
    check = host.profiles(host.DoctorHost())
    assert check.status is status
    assert words in check.detail
    assert (check.remedy is None) == (status is CheckStatus.OK)


def test_debuginfod_is_off_by_default(write: Callable[..., host.DoctorHost]) -> None:
    assert "not set" in host.debuginfod(write({})).detail
    assert host.debuginfod(write({}, DEBUGINFOD_URLS="https://x")).detail == "https://x"


@pytest.mark.parametrize(
    ("release", "family", "package", "expected"),
    [
        ("ID=debian\n", "debian", "libc6", "apt install libc6-dbg"),
        (
            'ID=ubuntu\nID_LIKE="debian"\n',
            "debian",
            "mariadb-server-core",
            "apt install mariadb-server-core-dbgsym",
        ),
        (
            'ID="rocky"\nID_LIKE="rhel centos fedora"\n',
            "redhat",
            "mysql-server",
            "dnf debuginfo-install mysql-server",
        ),
        (
            'ID="opensuse-leap"\nID_LIKE="suse opensuse"\n',
            "suse",
            "mariadb",
            "zypper install mariadb-debuginfo",
        ),
        ("ID=arch\n", None, None, "set DEBUGINFOD_URLS"),
    ],
)
def test_missing_symbols_name_the_debug_package(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    release: str,
    family: str | None,
    package: str | None,
    expected: str,
) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "os-release").write_text(release)
    monkeypatch.setattr(symbol_packages, "owner", lambda _path, _family: package)
    assert symbol_packages.distribution(tmp_path) == family
    remedy = symbol_packages.remedy(symbol_packages.Stripped("/usr/sbin/mysqld", "abcdef", tmp_path, True))
    assert remedy.startswith(expected)
    assert "/usr/lib/debug/.build-id/ab/cdef.debug" in remedy


def test_dpkg_is_queried_with_both_paths_of_merged_usr(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = []

    def run(command: list[str]) -> str | None:
        paths.append(command[-1])
        known = command[-1] == "/lib/x86_64-linux-gnu/libc.so.6"
        return "libc6:amd64: /lib/x86_64-linux-gnu/libc.so.6" if known else None

    monkeypatch.setattr(symbol_packages, "_ask", run)
    assert symbol_packages.owner("/usr/lib/x86_64-linux-gnu/libc.so.6", "debian") == "libc6"
    assert paths == ["/usr/lib/x86_64-linux-gnu/libc.so.6", "/lib/x86_64-linux-gnu/libc.so.6"]


@pytest.mark.parametrize(
    ("state", "tracer", "status", "words", "remedy"),
    [
        ("S (sleeping)", "0", CheckStatus.OK, "not traced", None),
        ("T (stopped)", "0", CheckStatus.WARN, "stopped", "kill -CONT 42"),
        ("t (tracing stop)", "43", CheckStatus.WARN, "traced by process 43 (gdb)", "kill 43"),
    ],
)
def test_stopped_or_traced_server_is_a_warning(
    tmp_path: Path, state: str, tracer: str, status: CheckStatus, words: str, remedy: str | None
) -> None:
    for pid in ("42", "43"):
        (tmp_path / pid).mkdir()
    (tmp_path / "42" / "status").write_text(f"State:\t{state}\nTracerPid:\t{tracer}\n")
    (tmp_path / "43" / "stat").write_text(f"43 (gdb) S {' '.join(['1'] * 30)}")
    check = server._state(ProcFs(tmp_path), TARGET)
    assert check.status is status
    assert words in check.detail
    assert remedy is None or remedy in (check.remedy or "")


def test_inaccessible_server_still_gets_its_other_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> Any:
        raise NoRights("no right", remedy="sudo")

    def silent(*_: object, **__: object) -> Any:
        raise SqlFailed("no SQL: no answer", remedy="start it")

    monkeypatch.setattr(server, "_modules", refuse)
    monkeypatch.setattr(sql, "connect", silent)
    found = {check.name: check.status for check in server.examine(TARGET, LoginOptions(), ProcFs(tmp_path))}
    assert found[server.ACCESS] is CheckStatus.FAIL
    assert found["SQL (for --queries)"] is CheckStatus.WARN


def _report(bpf: CheckResult, ptrace: CheckResult, access: CheckResult | None) -> report.DoctorReport:
    servers = [] if access is None else [[access]]
    return report.DoctorReport([bpf, ptrace], [] if access is None else [TARGET], servers)


WORKS, BROKEN = ok(SNAPSHOTS, "x"), fail(SNAPSHOTS, "x", "y")
HOLDS, HELD_BACK = ok(PTRACE, "x"), warn(PTRACE, "x", "y")
READ, UNREAD = ok(server.ACCESS, "x"), fail(server.ACCESS, "x", "y")


@pytest.mark.parametrize(
    ("made", "verdict"),
    [
        (_report(WORKS, HOLDS, READ), DoctorVerdict.WORKS),
        (_report(WORKS, HELD_BACK, READ), DoctorVerdict.WORKS),
        (_report(BROKEN, HOLDS, READ), DoctorVerdict.FALLBACK),
        (_report(BROKEN, HELD_BACK, READ), DoctorVerdict.NOTHING),
        (_report(WORKS, HOLDS, UNREAD), DoctorVerdict.NOTHING),
        (_report(WORKS, HOLDS, None), DoctorVerdict.NO_SERVER),
    ],
)
def test_verdict_follows_from_the_checks(made: report.DoctorReport, verdict: DoctorVerdict) -> None:
    assert made.verdict is verdict
    assert report.document(made)["exit_code"] == verdict


def test_failed_check_is_followed_by_its_remedy() -> None:
    lines = list(report.text(_report(BROKEN, HOLDS, READ)))
    broken = next(index for index, line in enumerate(lines) if "FAIL" in line)
    assert lines[broken + 1].strip() == "→ y"
    assert lines[-1].startswith("Stacks work only with --method ptrace")


def test_host_is_checked_when_no_server_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("innoscope.cli.commands.doctor.survey", lambda: ([], ()))
    monkeypatch.setattr(host, "_try", lambda _probe: Feature(True, "works"))
    assert cli_main.main(["doctor"]) == 3
    assert capsys.readouterr().out.startswith("Host\n")


_ALL = "000001ffffffffff"
_WITHOUT_ADMIN = f"{int(_ALL, 16) & ~(1 << 21):016x}"
_INSTALLED = {str(capabilities.DROP_IN)[1:]: ""}


@pytest.mark.parametrize(
    ("works", "effective", "files", "status", "words"),
    [
        ({"uprobe-links"}, _ALL, {}, CheckStatus.OK, "BPF links work, without CAP_SYS_ADMIN"),
        ({"uprobe-events"}, _ALL, {}, CheckStatus.WARN, "which the sensor's unit does not have"),
        ({"uprobe-events"}, _ALL, {}, CheckStatus.WARN, "perf events work (uprobe-events tried)"),
        ({"uprobe-events"}, _ALL, _INSTALLED, CheckStatus.OK, "grants to the sensor"),
        ({}, _WITHOUT_ADMIN, {}, CheckStatus.WARN, "which the sensor's unit does not have"),
        ({}, _ALL, {}, CheckStatus.WARN, "no probes: "),
        ({}, "0000000000000000", {}, CheckStatus.WARN, "not tried"),
    ],
)
def test_uprobes_say_whether_the_sensor_needs_sys_admin(
    write: Callable[..., host.DoctorHost], monkeypatch: pytest.MonkeyPatch, *,
    works: set[str], effective: str, files: dict[str, str], status: CheckStatus, words: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(host, "_try", lambda probe: Feature(probe in works, f"{probe} tried"))
    check = host.uprobes(write({"proc/self/status": f"CapEff:\t{effective}\n", **files}))

    assert (check.status, words in check.detail) == (status, True)
    assert "uprobe-links tried" in check.detail
    if words.endswith("does not have"):
        assert check.remedy == capabilities.REMEDY
