"""Map system call numbers to names, and file descriptors to kinds of files. No symbols are needed."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Kinds of files, as named in waits.yaml.
KINDS: Final = frozenset({
    "data", "redo", "binlog", "relaylog", "doublewrite", "undo", "temporary", "frm",
    "socket", "pipe", "eventpoll", "other",
})  # fmt: skip

# System calls in which servers wait, from the kernel's asm/unistd_64.h and asm-generic/unistd.h.
_X86_64: Final = (
    "read=0 write=1 poll=7 mmap=9 mprotect=10 munmap=11 brk=12 pread64=17 pwrite64=18 readv=19 writev=20 "
    "select=23 sched_yield=24 madvise=28 nanosleep=35 accept=43 sendto=44 recvfrom=45 sendmsg=46 recvmsg=47 "
    "fsync=74 fdatasync=75 ftruncate=77 rt_sigtimedwait=128 futex=202 io_getevents=208 io_submit=209 "
    "clock_nanosleep=230 epoll_wait=232 pselect6=270 ppoll=271 sync_file_range=277 epoll_pwait=281 "
    "fallocate=285 accept4=288 preadv=295 pwritev=296 preadv2=327 pwritev2=328 io_pgetevents=333 "
    "io_uring_enter=426"
)
_AARCH64: Final = (
    "io_submit=2 io_getevents=4 epoll_pwait=22 ftruncate=46 fallocate=47 read=63 write=64 readv=65 "
    "writev=66 pread64=67 pwrite64=68 preadv=69 pwritev=70 pselect6=72 ppoll=73 fsync=82 "
    "fdatasync=83 sync_file_range=84 futex=98 nanosleep=101 clock_nanosleep=115 sched_yield=124 "
    "rt_sigtimedwait=137 accept=202 sendto=206 recvfrom=207 sendmsg=211 recvmsg=212 brk=214 "
    "munmap=215 mmap=222 mprotect=226 madvise=233 accept4=242 preadv2=286 pwritev2=287 "
    "io_pgetevents=292 io_uring_enter=426 "
)


def _table(text: str) -> dict[int, str]:
    return {int(number): name for name, number in (item.split("=") for item in text.split())}


_TABLES: Final = {"x86_64": _table(_X86_64), "aarch64": _table(_AARCH64)}
#: All system call names that a rule may use.
SYSCALLS: Final = frozenset(name for table in _TABLES.values() for name in table.values())
#: Calls whose first argument is the descriptor of the file (or io_uring) that the thread is waiting for.
_ON_A_FILE: Final = frozenset({
    "read", "write", "readv", "writev", "pread64", "pwrite64", "preadv", "pwritev", "preadv2", "pwritev2",
    "fsync", "fdatasync", "ftruncate", "fallocate", "sync_file_range", "io_uring_enter",
})  # fmt: skip


def syscall_names(machine: str | None = None) -> dict[int, str]:
    """Return ``{number: name}`` of the system calls of a machine, by default this one; ``{}`` if unknown."""
    return _TABLES.get(machine or os.uname().machine, {})


def file_calls(machine: str | None = None) -> frozenset[int]:
    """Return the numbers of the system calls whose first argument is the descriptor of the awaited file."""
    return frozenset(number for number, name in syscall_names(machine).items() if name in _ON_A_FILE)


# Kinds of files, with patterns that match the whole path. The first match wins.
_PATTERNS: Final = (
    ("socket", r"socket:\[.*"),
    ("pipe", r"pipe:\[.*"),
    ("eventpoll", r"anon_inode:\[eventpoll\]"),
    ("redo", r".*/(ib_logfile[^/]*|#ib_redo[^/]*)"),
    # xb_doublewrite: the parallel doublewrite buffer of Percona 5.7 (buf0dblwr.cc)
    ("doublewrite", r".*\.b?dblwr|.*/xb_doublewrite"),
    ("relaylog", r".*/[^/]*relay[^/]*\.\d{6,}"),
    ("binlog", r".*/[^/]+\.\d{6,}"),
    ("temporary", r".*/(ibtmp\d*|temp_\d+\.ibt|#sql[^/]*)"),
    ("temporary", r".*/(ib[A-Za-z0-9]{6}|M[YL][A-Za-z0-9_=]{6,})( \(deleted\))?"),  # mkstemp, unlinked
    ("undo", r".*/(undo_?\d+|.*\.ibu)"),
    ("data", r".*/(ibdata\d+|[^/]*\.(ibd|MYD|MYI|MAD|MAI))"),
    ("frm", r".*\.(frm|par|sdi|opt|TRG)"),
)  # fmt: skip


def kind_of(link: str) -> str:
    """Return the kind of the file that ``/proc/PID/fd/N`` links to, one of KINDS."""
    for kind, pattern in _PATTERNS:
        if re.fullmatch(pattern, link):
            return kind
    return "other"


def kinds(pid: int, descriptors: Iterable[int], proc: str = "/proc") -> dict[int, str]:
    """Return the kind of each descriptor, except closed and unreadable ones."""
    found = {}
    for number in set(descriptors):
        try:
            found[number] = kind_of(os.readlink(f"{proc}/{pid}/fd/{number}"))  # noqa: PTH115
        except OSError:
            continue
    return found
