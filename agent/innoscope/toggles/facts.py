"""Collect the facts that the checks need, without stopping, tracing or querying the server."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from innoscope import _native
from innoscope.common.errors import InnoscopeError
from innoscope.target import executable
from innoscope.target.native_errors import translating
from innoscope.target.proc import ProcFs
from innoscope.toggles.paths import boot_id
from innoscope.toggles.stopped_threads import thread_states

if TYPE_CHECKING:
    from innoscope.target.model import Target
    from innoscope.toggles.journal import Journal

_CAP_SYS_PTRACE: Final = 19  # bit of CapEff, include/uapi/linux/capability.h
_SCOPE: Final = Path("/proc/sys/kernel/yama/ptrace_scope")
#: File name prefixes of cluster libraries, and the role of a server that has loaded one.
_CLUSTERS: Final = {
    "libgalera": "a node of a Galera cluster",
    "group_replication.so": "a member of a replication group",
}
#: srv_shutdown_state is nonzero during InnoDB's shutdown (srv0start, all versions). recv_recovery_on is
#: nonzero while redo is applied at startup (log0recv). In MariaDB 10.5 and newer, a member of recv_sys, which
#: has no symbol of its own, replaces recv_recovery_on.
_SHUTDOWN, _RECOVERY = "srv_shutdown_state", "recv_recovery_on"


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about the process that currently has the target's pid, and about this process.

    ``start_time`` is None if the process has exited. ``stopped`` is the number of threads in state T or t,
    and ``tracer`` is the pid of a process that traces the server. ``phase`` is "recovering" or "stopping" as
    read from memory, else None. ``memory_error`` is the reason why /proc/PID/mem cannot be opened for
    writing. ``cluster`` is set if the server has loaded a cluster library.
    """

    start_time: int | None
    build_id: str | None
    boot_id: str
    stopped: int = 0
    tracer: int | None = None
    tracer_name: str | None = None
    listens: bool = True
    phase: str | None = None
    memory_error: str | None = None
    ptrace_capable: bool = True
    ptrace_scope: int | None = None
    seccomp: bool = False
    cluster: str | None = None
    journal_problem: tuple[str, str] | None = None


def gather(target: Target, journal: Journal, proc: ProcFs | None = None) -> Facts:
    """Return all facts. Missing privileges raise no error; they are recorded, so that checks fail."""
    proc = proc or ProcFs()
    try:
        return _gather(target, journal, proc)
    except (ProcessLookupError, PermissionError) as error:
        ended = isinstance(error, ProcessLookupError)
        return Facts(
            start_time=None if ended else target.start_time,
            build_id=target.build_id,
            boot_id=boot_id(),
            memory_error=error.strerror,
            ptrace_capable=_capable(proc),
            ptrace_scope=_scope(),
            journal_problem=journal.problem(),
        )


def _gather(target: Target, journal: Journal, proc: ProcFs) -> Facts:
    pid = target.pid
    stat = proc.stat(pid)
    standing = thread_states(proc, pid)
    tracer = standing.tracers[0] if standing.tracers else None
    listening = _listens(proc, pid)
    return Facts(
        start_time=None if stat.state in "ZX" else stat.start_time,
        build_id=executable.describe(proc, pid, executable.locate(proc, pid)).build_id,
        boot_id=boot_id(),
        stopped=standing.still,
        tracer=None if tracer is None else tracer.pid,
        tracer_name=None if tracer is None else tracer.name,
        listens=listening,
        phase=None if listening else _phase(pid),
        memory_error=_memory_error(proc, pid),
        ptrace_capable=_capable(proc),
        ptrace_scope=_scope(),
        seccomp=_own_status(proc).get("Seccomp", "0") != "0",
        cluster=_cluster(proc, pid),
        journal_problem=journal.problem(),
    )


def _listens(proc: ProcFs, pid: int) -> bool:
    """Return whether the server has a listening socket, which is open only while InnoDB is running.

    The server opens its sockets in network_init(), after init_server_components(), which includes recovery.
    It closes them before clean_up(): in close_connections() (5.5, 5.6, MariaDB), or at the end of
    connection_event_loop() (5.7 and newer).
    """
    inodes = proc.socket_inodes(pid)
    if inodes & proc.unix_listeners(pid).keys():
        return True
    return any(inode in inodes for inode, _ in proc.tcp_listeners(pid))


def _phase(pid: int) -> str | None:
    """Return the phase of a server that is not listening, as read from its memory; None if unknown."""
    try:
        with translating(pid):
            found = _native.symbol_in_process(pid, [_SHUTDOWN, _RECOVERY])
            holds = {
                name: any(_native.read_memory(pid, symbol.address, min(symbol.size or 1, 8)))
                for name, symbol in found.items()
            }
    except InnoscopeError:
        return None
    if holds.get(_SHUTDOWN):
        return "stopping"
    return "recovering" if holds.get(_RECOVERY) else None


def _cluster(proc: ProcFs, pid: int) -> str | None:
    """Return the server's cluster role according to its loaded libraries; None if there is none."""
    libraries = proc.mapped_names(pid)
    return next(
        (words for name, words in _CLUSTERS.items() if any(one.startswith(name) for one in libraries)), None
    )


def _memory_error(proc: ProcFs, pid: int) -> str | None:
    """Return the reason why the process's memory cannot be opened for writing, or None.

    Opening the file performs the kernel's access check for tracing (PTRACE_MODE_ATTACH).
    """
    try:
        os.close(os.open(proc.path(pid, "mem"), os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return error.strerror
    return None


def _own_status(proc: ProcFs) -> dict[str, str]:
    return proc.status(os.getpid())


def _capable(proc: ProcFs) -> bool:
    return bool(int(_own_status(proc).get("CapEff", "0"), 16) >> _CAP_SYS_PTRACE & 1)


def _scope() -> int | None:
    """Return kernel.yama.ptrace_scope; None on kernels without Yama."""
    try:
        return int(_SCOPE.read_text())
    except (OSError, ValueError):
        return None
