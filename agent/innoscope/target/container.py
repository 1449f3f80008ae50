"""Detect whether a process runs in a container, by container ids and differing namespaces."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

from innoscope.common.errors import KernelUnable

if TYPE_CHECKING:
    from innoscope.target.proc import ProcFs

#: docker-<id>.scope, /docker/<id>, libpod-<id>.scope, cri-containerd-<id>.scope, kubepods/…/<id>.
_ID = re.compile(r"(?<![0-9a-f])([0-9a-f]{64})(?![0-9a-f])")

_CONTAINERS: Final = "container/"

#: The kernel's PROC_PID_INIT_INO. BPF programs see the process ids of this namespace by default.
FIRST_PID_NAMESPACE: Final = 0xEFFFFFFC


def container_of(proc: ProcFs, pid: int) -> str | None:
    """Return the innermost container id's first 12 digits, else the differing namespaces (``"mnt,pid"``).

    Return None if no namespace differs, if the kernel denies the comparison, or if the process has exited. A
    systemd unit with PrivateTmp differs in ``mnt``.
    """
    ids = _ids(proc, pid)
    if ids:
        return ids[-1][:12]
    return ",".join(differing_namespaces(proc, pid)) or None


def differing_namespaces(proc: ProcFs, pid: int) -> list[str]:
    """Return the names of the namespaces that differ from ours, in the order of ``proc.NAMESPACES``.

    Return an empty list if the kernel denies the comparison or the process has exited.
    """
    try:
        theirs, ours = proc.namespaces(pid), proc.namespaces("self")
    except (PermissionError, ProcessLookupError):
        return []
    return [name for name, value in theirs.items() if value != ours[name]]


def in_foreign_container(proc: ProcFs, pid: int) -> bool:
    """Return whether the process's cgroup belongs to a container that we are not in.

    The container may still share our pid namespace.
    """
    return bool(_ids(proc, pid))


def tenant_of(proc: ProcFs, pid: int) -> str | None:
    """Return the outermost container's id, else the pid namespace; None for a process outside containers."""
    ids = _ids(proc, pid)
    if ids:
        return ids[0]
    try:
        return proc.namespace(pid, "pid") if proc.owner(pid).nested else None
    except (PermissionError, ProcessLookupError):
        return None


def tenant_or_user(proc: ProcFs, pid: int) -> str:
    """Return the process's outermost container as ``container/ID``, or its user as ``uid N``.

    Return ``uid None`` if the process has exited or the kernel denies access.

    The prefix ``container/`` puts the turns of all containers into one group (``Job`` in common/workers.py).
    """
    try:
        tenant = tenant_of(proc, pid)
        return f"{_CONTAINERS}{tenant}" if tenant else f"uid {proc.owner(pid).uids[0]}"
    except (ProcessLookupError, PermissionError, IndexError):
        return "uid None"


def is_container(tenant: str) -> bool:
    """Return whether a result of ``tenant_or_user`` is a container."""
    return tenant.startswith(_CONTAINERS)


def _ids(proc: ProcFs, pid: int) -> list[str]:
    """Return the container ids in the process's cgroup path, outermost first, without our own ids."""
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


def require_host_pids(action: str, path: str = "/proc/self/ns/pid") -> None:
    """Raise KernelUnable in a container with its own pid namespace: BPF programs use the host's pids.

    ``action`` names the refused action in the error message, such as ``profile``.
    """
    if os.stat(path).st_ino != FIRST_PID_NAMESPACE:  # noqa: PTH116
        raise KernelUnable(
            f"cannot {action} from a container with its own process ids: BPF programs use those of the host",
            remedy="run it on the host, or in a container that uses the host's pids: docker run --pid=host …",
        )
