"""Convert errors of the Rust core to InnoscopeError with a remedy."""

from __future__ import annotations

import errno
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from innoscope import _native
from innoscope.common.errors import BadFile, InnoscopeError, KernelUnable, NoRights, NoSuchProcess, Traced

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Lock held while Innoscope searches a server's symbols for functions and variables, or reads a symbol pack,
#: so that even with many servers, only one search at a time uses memory (up to 30 MB). The lock is not held
#: for snapshots and the detection of versions, nor while a child process reads debug information, which takes
#: seconds.
ONE_AT_A_TIME: Final = threading.Lock()
RUN_AS_ROOT = (
    "run it as root: sudo innoscope …; or with CAP_BPF, CAP_PERFMON, "
    "CAP_SYS_PTRACE and CAP_CHECKPOINT_RESTORE (--method procfs needs only CAP_SYS_PTRACE)"
)


@dataclass(frozen=True, slots=True)
class NativeFailure:
    """The contents of a ``NativeError``. The kinds are listed in ``_native.pyi``."""

    kind: str
    detail: str
    remedy: str | None = None


def failure(error: _native.NativeError) -> NativeFailure:
    """Return the contents of a ``NativeError``."""
    return NativeFailure(*error.args) if len(error.args) >= 2 else NativeFailure("internal", str(error))


def no_rights(pid: int, detail: str) -> NoRights:
    """Return the error for a process that we are not allowed to inspect."""
    return NoRights(f"cannot inspect process {pid}: {detail}", remedy=RUN_AS_ROOT)


def gone(pid: int) -> NoSuchProcess:
    """Return the error for a process that no longer exists."""
    return NoSuchProcess(f"process {pid} does not exist or has exited", remedy="innoscope targets")


def explain(pid: int, kind: str, detail: str) -> InnoscopeError:
    """Return the error for a ``NativeError``; the kinds are listed in ``_native.pyi``."""
    if kind == "gone":
        return gone(pid)
    if kind == "rights":
        return no_rights(pid, detail)
    if kind == "traced":
        return Traced(
            f"cannot stop the threads of process {pid}: {detail}",
            remedy="detach that debugger, or use --method auto, which does not trace",
        )
    if kind == "bpf":
        return KernelUnable(
            f"this kernel refuses a BPF program: {detail}",
            remedy="innoscope doctor shows why; innoscope stacks --method procfs needs no BPF",
        )
    if kind == "perf":
        return KernelUnable(
            f"cannot profile process {pid} with this kernel: {detail}", remedy="innoscope doctor shows why"
        )
    if kind == "procfs":
        return KernelUnable(
            f"cannot take stack snapshots with this kernel: {detail}",
            remedy="innoscope doctor shows why; --method ptrace works, but briefly stops each thread",
        )
    if kind == "elf":
        return BadFile(f"cannot read the ELF file: {detail}", remedy="reinstall the file's package")
    if kind == "arch":
        return KernelUnable(
            f"cannot inspect process {pid}: it has another CPU architecture: {detail}",
            remedy="use an innoscope built for that architecture",
        )
    return InnoscopeError(
        f"internal error in the Rust core: {detail}", remedy="please report it with the output of --debug"
    )


def explain_os_error(pid: int, error: OSError) -> InnoscopeError:
    """Return the error for an ``OSError`` that occurred while inspecting a process."""
    if error.errno in (errno.ESRCH, errno.ENOENT):
        return gone(pid)
    if error.errno in (errno.EPERM, errno.EACCES):
        return no_rights(pid, error.strerror or str(error))
    return InnoscopeError(f"cannot inspect process {pid}: {error}", remedy="innoscope doctor")


@contextmanager
def translating(pid: int) -> Iterator[None]:
    """Convert errors of the Rust core about process ``pid`` to InnoscopeError."""
    try:
        yield
    except OSError as error:
        raise explain_os_error(pid, error) from error
    except _native.NativeError as error:
        found = failure(error)
        raise explain(pid, found.kind, found.detail) from error


@contextmanager
def reading_files(pid: int) -> Iterator[None]:
    """Convert errors in the same way as ``translating``, while holding ONE_AT_A_TIME."""
    with ONE_AT_A_TIME, translating(pid):
        yield
