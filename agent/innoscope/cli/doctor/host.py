"""Check the host's rights, kernel features and policies. Features are tested, not inferred from versions."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from innoscope import _native
from innoscope.cli.doctor.model import Check, Status, fail, ok, warn
from innoscope.probes import capabilities
from innoscope.target.native_errors import RUN_AS_ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Capabilities and their bits in CapEff, from include/uapi/linux/capability.h.
_CAPABILITIES = {
    "CAP_SYS_PTRACE": 19,
    "CAP_SYS_ADMIN": 21,
    "CAP_PERFMON": 38,
    "CAP_BPF": 39,
    "CAP_CHECKPOINT_RESTORE": 40,
}
#: Capabilities that CAP_SYS_ADMIN includes.
_COVERED_BY_ADMIN = {"CAP_PERFMON", "CAP_BPF", "CAP_CHECKPOINT_RESTORE"}


@dataclass(frozen=True)
class Host:
    """The host to check. Tests pass an artificial root folder and environment."""

    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def read(self, path: str) -> str | None:
        """Return the stripped text of a file like ``proc/sys/…``, or None if it cannot be read."""
        try:
            return (self.root / path).read_text(errors="replace").strip()
        except OSError:
            return None


def rights(host: Host) -> Check:
    """Check the capabilities in the line CapEff of /proc/self/status."""
    text = host.read("proc/self/status") or ""
    line = next((line for line in text.splitlines() if line.startswith("CapEff:")), "CapEff: 0")
    effective = int(line.split()[1], 16)
    held = {name for name, bit in _CAPABILITIES.items() if effective >> bit & 1}
    if "CAP_SYS_ADMIN" in held:
        held |= _COVERED_BY_ADMIN
    missing = [name for name in _CAPABILITIES if name not in held and name != "CAP_SYS_ADMIN"]
    if missing:
        return fail("rights", "missing " + ", ".join(missing), RUN_AS_ROOT)
    return ok("rights", "all capabilities that stacks need")


def kernel(host: Host) -> Check:
    """Report the kernel release, for information only: the other checks test features."""
    return ok("kernel", host.read("proc/sys/kernel/osrelease") or "unknown release")


def btf(host: Host) -> Check:
    """Check the kernel's type information (CONFIG_DEBUG_INFO_BTF), which the snapshot program needs."""
    if (host.root / "sys/kernel/btf/vmlinux").exists():
        return ok("BTF", "/sys/kernel/btf/vmlinux")
    return fail(
        "BTF", "/sys/kernel/btf/vmlinux is missing", "boot a kernel built with CONFIG_DEBUG_INFO_BTF=y"
    )


def lockdown(host: Host) -> Check:
    """Check kernel lockdown (securityfs). ``confidentiality`` forbids BPF programs to read kernel memory."""
    text = host.read("sys/kernel/security/lockdown")
    if text is None or "[none]" in text:
        return ok("lockdown", "off")
    mode = text.partition("[")[2].partition("]")[0]
    if mode == "confidentiality":
        return fail(
            "lockdown", mode, "boot with lockdown=integrity (Secure Boot alone does not ask for more)"
        )
    return ok("lockdown", mode)


def map_files(host: Host) -> Check:
    """Check that files can be opened through /proc/PID/map_files, as upgrades and containers require."""
    folder = host.root / "proc/self/map_files"
    try:
        entry = next(folder.iterdir())
        entry.open("rb").close()
    except StopIteration:
        return warn("map_files", "empty", None)
    except OSError as error:
        return warn(
            "map_files",
            f"{error.strerror}: files are opened by name, which is wrong for a replaced executable",
            RUN_AS_ROOT,
        )
    return ok("map_files", "mapped files can be opened")


def debug_folder(host: Host) -> Check:
    """Report whether any separate debug files are installed."""
    folder = host.root / "usr/lib/debug"
    if folder.is_dir() and any(folder.iterdir()):
        return ok("debug files", "/usr/lib/debug")
    return ok("debug files", "none installed; only needed for servers without symbols of their own")


def debuginfod(host: Host) -> Check:
    """Report whether debug files may be downloaded, which requires DEBUGINFOD_URLS."""
    urls = host.environment.get("DEBUGINFOD_URLS", "").strip()
    return ok(
        "debuginfod", urls if urls else "DEBUGINFOD_URLS is not set: nothing is fetched over the network"
    )


def bpf(host: Host) -> Check:
    """Run the snapshot program on this process."""
    tried = _try("probe_bpf")
    if tried.works:
        return ok("bpf snapshot", tried.detail)
    return fail(
        "bpf snapshot", tried.detail, "see rights, BTF and lockdown; else --method ptrace, or a kernel ≥ 5.18"
    )


def perf(host: Host) -> Check:
    """Take a perf event sample of registers and stack, as is done for threads that run on a CPU."""
    tried = _try("probe_perf")
    if tried.works:
        return ok("perf events", tried.detail)
    paranoid = host.read("proc/sys/kernel/perf_event_paranoid")
    return warn(
        "perf events",
        f"{tried.detail} (perf_event_paranoid = {paranoid}): threads on a CPU are shown as stale",
        RUN_AS_ROOT,
    )


def uprobes(host: Host) -> Check:
    """Check whether probes are attached with BPF links, or with perf events, which need CAP_SYS_ADMIN."""
    tried = _try("probe_uprobe_links")
    if tried.works:
        return ok("uprobes", f"by BPF links, without CAP_SYS_ADMIN: {tried.detail}")
    if rights(host).status is not Status.OK:
        return warn("uprobes", f"not tried: {tried.detail}", RUN_AS_ROOT)
    needs = f"this kernel has no uprobe links ({tried.detail}); perf events need CAP_SYS_ADMIN"
    if (host.root / capabilities.DROP_IN.relative_to("/")).exists():
        return ok("uprobes", f"{needs}, which {capabilities.DROP_IN} gives to the sensor")
    return warn("uprobes", f"{needs}, which the sensor's unit does not have", capabilities.REMEDY)


def ptrace(host: Host) -> Check:
    """Test ptrace on a child process. This fallback method stops each thread."""
    tried = _try("probe_ptrace")
    if tried.works:
        return ok("ptrace fallback", tried.detail)
    scope = host.read("proc/sys/kernel/yama/ptrace_scope")
    policy = f" (kernel.yama.ptrace_scope = {scope})" if scope is not None else ""
    return warn(
        "ptrace fallback",
        tried.detail + policy,
        "sysctl kernel.yama.ptrace_scope=1" if scope == "3" else RUN_AS_ROOT,
    )


def _try(probe: str) -> _native.Feature:
    """Call a feature test of the Rust core."""
    probes = {
        "probe_bpf": _native.probe_bpf,
        "probe_perf": _native.probe_perf,
        "probe_ptrace": _native.probe_ptrace,
        "probe_uprobe_links": _native.probe_uprobe_links,
    }
    try:
        return probes[probe]()
    except (OSError, _native.NativeError) as error:
        return _native.Feature(False, str(error))


#: All checks, in the order in which they are printed.
CHECKS: tuple[Callable[[Host], Check], ...] = (
    rights, kernel, btf, lockdown, bpf, perf, uprobes, ptrace, map_files, debug_folder, debuginfod,
)  # fmt: skip


def examine(host: Host) -> list[Check]:
    """Run all checks of the host, and return their results."""
    return [check(host) for check in CHECKS]
