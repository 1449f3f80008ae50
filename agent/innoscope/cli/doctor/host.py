"""Check our privileges, kernel features and policies. Features are tested, not inferred from versions."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from innoscope import _native
from innoscope.cli.doctor.model import PTRACE, SNAPSHOTS, CheckResult, CheckStatus, fail, ok, warn
from innoscope.common.errors import KernelUnable
from innoscope.probes import capabilities
from innoscope.target.container import require_host_pids
from innoscope.target.native_errors import RUN_AS_ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Methods that copy stacks without stopping threads, best first.
_SNAPSHOT_METHODS: Final[tuple[_native.HostFeature, ...]] = ("bpf", "bpf-nosleep", "procfs")
#: The methods that replace the BPF programs for snapshots and profiles, as text for messages.
_WITHOUT_BPF: Final = "snapshots use procfs, profiles use perf events"
_ALLOW_PROBES: Final = "allow the system calls bpf and perf_event_open (seccomp), or do without probes"
#: Capabilities and their bits in CapEff, from include/uapi/linux/capability.h.
_CAPABILITIES: Final = {
    "CAP_DAC_OVERRIDE": 1,
    "CAP_DAC_READ_SEARCH": 2,
    "CAP_SYS_PTRACE": 19,
    "CAP_SYS_ADMIN": 21,
    "CAP_PERFMON": 38,
    "CAP_BPF": 39,
    "CAP_CHECKPOINT_RESTORE": 40,
}
#: Capabilities that include others, for what we need them for.
_INCLUDED: Final = {
    "CAP_DAC_OVERRIDE": {"CAP_DAC_READ_SEARCH"},
    "CAP_SYS_ADMIN": {"CAP_PERFMON", "CAP_BPF", "CAP_CHECKPOINT_RESTORE"},
}


@dataclass(frozen=True)
class DoctorHost:
    """The host to check: its root directory and environment, which tests replace."""

    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def read(self, path: str) -> str | None:
        """Return the text of a file such as ``proc/sys/…``, stripped; None if it cannot be read."""
        try:
            return (self.root / path).read_text(errors="replace").strip()
        except OSError:
            return None


def _held(host: DoctorHost) -> set[str]:
    """Return those of _CAPABILITIES that we have (CapEff in /proc/self/status), or that these include."""
    text = host.read("proc/self/status") or ""
    line = next((line for line in text.splitlines() if line.startswith("CapEff:")), "CapEff: 0")
    effective = int(line.split()[1], 16)
    held = {name for name, bit in _CAPABILITIES.items() if effective >> bit & 1}
    return held.union(*(_INCLUDED[name] for name in held & _INCLUDED.keys()))


def rights(host: DoctorHost) -> CheckResult:
    """Check our effective capabilities."""
    held = _held(host)
    missing = [name for name in _CAPABILITIES if name not in held and name not in _INCLUDED]
    if missing:
        return warn("rights", "missing " + ", ".join(missing), RUN_AS_ROOT)
    return ok("rights", "all capabilities that stacks, profiles and probes need")


def kernel(host: DoctorHost) -> CheckResult:
    """Report the kernel release, for information only: the other checks test features."""
    return ok("kernel", host.read("proc/sys/kernel/osrelease") or "unknown release")


def btf(host: DoctorHost) -> CheckResult:
    """Check the kernel's type information (CONFIG_DEBUG_INFO_BTF).

    BPF programs for snapshots and profiles need it; BPF programs for probes do not.
    """
    if (host.root / "sys/kernel/btf/vmlinux").exists():
        return ok("BTF", "/sys/kernel/btf/vmlinux")
    return warn(
        "BTF",
        f"/sys/kernel/btf/vmlinux is missing: {_WITHOUT_BPF}",
        "boot a kernel built with CONFIG_DEBUG_INFO_BTF=y",
    )


def lockdown(host: DoctorHost) -> CheckResult:
    """Check kernel lockdown (securityfs).

    With ``confidentiality``, BPF programs cannot read kernel memory, which the programs for snapshots and
    profiles must do. The programs for probes read only the server's memory.
    """
    text = host.read("sys/kernel/security/lockdown")
    if text is None or "[none]" in text:
        return ok("lockdown", "off")
    mode = text.partition("[")[2].partition("]")[0]
    if mode == "confidentiality":
        return warn(
            "lockdown",
            f"{mode}: {_WITHOUT_BPF}",
            "boot with lockdown=integrity (which is enough for Secure Boot)",
        )
    return ok("lockdown", mode)


def map_files(host: DoctorHost) -> CheckResult:
    """Check that mapped files can be opened via /proc/PID/map_files.

    A file's path does not work if the file was replaced, or is in a container.
    """
    folder = host.root / "proc/self/map_files"
    try:
        entry = next(folder.iterdir())
        entry.open("rb").close()
    except StopIteration:
        return warn("map_files", "empty", None)
    except OSError as error:
        return warn(
            "map_files",
            f"{error.strerror}: files are opened by path, which is wrong if an executable was replaced",
            RUN_AS_ROOT,
        )
    return ok("map_files", "mapped files can be opened")


def debug_folder(host: DoctorHost) -> CheckResult:
    """Report whether any separate debug files are installed."""
    folder = host.root / "usr/lib/debug"
    if folder.is_dir() and any(folder.iterdir()):
        return ok("debug files", "/usr/lib/debug")
    return ok("debug files", "none installed; needed only for stripped servers")


def debuginfod(host: DoctorHost) -> CheckResult:
    """Report whether debug files may be downloaded, that is, whether DEBUGINFOD_URLS is set."""
    urls = host.environment.get("DEBUGINFOD_URLS", "").strip()
    return ok(
        "debuginfod", urls if urls else "DEBUGINFOD_URLS is not set: nothing is fetched over the network"
    )


def snapshots(host: DoctorHost) -> CheckResult:
    """Find the first method that copies stacks of this process without stopping its threads."""
    reasons: list[str] = []
    for method in _SNAPSHOT_METHODS:
        tried = _try(method)
        if tried.works:
            return ok(
                SNAPSHOTS, "; ".join([f"{method} works without stopping threads: {tried.detail}", *reasons])
            )
        reasons.append(f"{method} does not work: {tried.detail}")
    return fail(SNAPSHOTS, "; ".join(reasons), RUN_AS_ROOT)


def perf(host: DoctorHost) -> CheckResult:
    """Check that perf events can sample the registers and the stack of a running thread."""
    tried = _try("perf")
    if tried.works:
        return ok("perf events", tried.detail)
    paranoid = host.read("proc/sys/kernel/perf_event_paranoid")
    return warn(
        "perf events",
        f"{tried.detail} (perf_event_paranoid = {paranoid}): threads on a CPU are shown as stale",
        RUN_AS_ROOT,
    )


def profiles(_host: DoctorHost) -> CheckResult:
    """Find the first method that profiles the CPU time and the waits of this process."""
    by_bpf = _profile_by_bpf()
    if by_bpf.works:
        return ok("profiles", f"bpf works: {by_bpf.detail}")
    by_perf = _try("profile-perf")
    waits = _try("profile-waits-perf")
    no_bpf = f"bpf does not work: {by_bpf.detail}"
    if not by_perf.works:
        return warn("profiles", f"{no_bpf}; perf does not work: {by_perf.detail}", RUN_AS_ROOT)
    off_cpu = f"--off-cpu: {waits.detail}" if waits.works else f"--off-cpu does not work: {waits.detail}"
    return warn("profiles", f"perf works: {by_perf.detail}; {off_cpu}; {no_bpf}", RUN_AS_ROOT)


def _profile_by_bpf() -> _native.Feature:
    try:
        require_host_pids("profile")
    except KernelUnable as error:
        return _native.Feature(False, error.what)
    return _try("profile-bpf")


def uprobes(host: DoctorHost) -> CheckResult:
    """Check whether probes can use BPF links. Otherwise they use perf events, which need CAP_SYS_ADMIN."""
    links = _try("uprobe-links")
    if links.works:
        return ok("uprobes", f"BPF links work, without CAP_SYS_ADMIN: {links.detail}")
    if rights(host).status is not CheckStatus.OK:
        return warn("uprobes", f"not tried: {links.detail}", RUN_AS_ROOT)
    needs = f"this kernel has no uprobe links ({links.detail}); perf events need CAP_SYS_ADMIN"
    if "CAP_SYS_ADMIN" in _held(host):
        events = _try("uprobe-events")
        if not events.works:
            reasons = f"BPF links do not work ({links.detail}); perf events do not work ({events.detail})"
            return warn("uprobes", f"no probes: {reasons}", _ALLOW_PROBES)
        needs = (
            f"this kernel has no uprobe links ({links.detail}); perf events work ({events.detail}), but need "
            "CAP_SYS_ADMIN"
        )
    if (host.root / capabilities.DROP_IN.relative_to("/")).exists():
        return ok("uprobes", f"{needs}, which {capabilities.DROP_IN} grants to the sensor")
    return warn("uprobes", f"{needs}, which the sensor's unit does not have", capabilities.REMEDY)


def ptrace(host: DoctorHost) -> CheckResult:
    """Test ptrace on a child process. Only ``--method ptrace`` uses it; it stops each thread."""
    tried = _try("ptrace")
    if tried.works:
        return ok(PTRACE, tried.detail)
    scope = host.read("proc/sys/kernel/yama/ptrace_scope")
    policy = f" (kernel.yama.ptrace_scope = {scope})" if scope is not None else ""
    return warn(
        PTRACE,
        tried.detail + policy,
        "sysctl kernel.yama.ptrace_scope=1" if scope == "3" else RUN_AS_ROOT,
    )


def _try(feature: _native.HostFeature) -> _native.Feature:
    """Detect a feature; an exception counts as a failure."""
    try:
        return _native.detect(feature)
    except (OSError, _native.NativeError) as error:
        return _native.Feature(False, str(error))


#: All checks, in the order in which they are printed.
CHECKS: tuple[Callable[[DoctorHost], CheckResult], ...] = (
    rights, kernel, btf, lockdown, snapshots, perf, profiles, uprobes, ptrace, map_files, debug_folder,
    debuginfod,
)  # fmt: skip


def examine(host: DoctorHost) -> list[CheckResult]:
    """Run all checks of the host and return their results."""
    return [check(host) for check in CHECKS]
