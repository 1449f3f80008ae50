"""Whether a process lives in a container: its id, or the namespaces that are not ours."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from innoscope.target.proc import ProcFs

#: docker-<id>.scope, /docker/<id>, libpod-<id>.scope, cri-containerd-<id>.scope, kubepods/…/<id>.
_ID = re.compile(r"(?<![0-9a-f])([0-9a-f]{64})(?![0-9a-f])")

#: PROC_PID_INIT_INO of the kernel: BPF programs have the ids of this pid namespace, unless they ask.
FIRST_PID_NAMESPACE: Final = 0xEFFFFFFC


def container_of(proc: ProcFs, pid: int) -> str | None:
    """The short container id (12 digits), else the differing namespaces (``"mnt,pid,user"``), else None.

    None also where the kernel does not let us compare. A unit of systemd with PrivateTmp differs by ``mnt``.
    """
    ids = _ids(proc, pid)
    if ids:
        return ids[-1][:12]
    return ",".join(differing(proc, pid)) or None


def differing(proc: ProcFs, pid: int) -> list[str]:
    """The names of the namespaces that differ from ours, in the order of ``proc.NAMESPACES``."""
    try:
        theirs, ours = proc.namespaces(pid), proc.namespaces("self")
    except (PermissionError, ProcessLookupError):
        return []
    return [name for name, value in theirs.items() if value != ours[name]]


def in_foreign_container(proc: ProcFs, pid: int) -> bool:
    """Return whether its cgroup is a container's that we are not in, also if it shares our pid namespace."""
    return bool(_ids(proc, pid))


def tenant_of(proc: ProcFs, pid: int) -> str | None:
    """Return which container it is in: the outermost one's id, else its pid namespace; None on this host."""
    ids = _ids(proc, pid)
    if ids:
        return ids[0]
    try:
        return proc.namespace(pid, "pid") if proc.owner(pid).nested else None
    except (PermissionError, ProcessLookupError):
        return None


def _ids(proc: ProcFs, pid: int) -> list[str]:
    """Container ids in the process's cgroup path, outermost first; none that we are in ourselves."""
    try:
        theirs = _ID.findall(proc.cgroup(pid))
    except (PermissionError, ProcessLookupError):
        return []
    return [found for found in theirs if found not in _our_ids(proc)]


def _our_ids(proc: ProcFs) -> list[str]:
    try:
        return _ID.findall((proc.root / "self" / "cgroup").read_text(errors="replace"))
    except OSError:
        return []
