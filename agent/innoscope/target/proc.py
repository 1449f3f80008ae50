"""Read /proc: processes, their executables, users and listening sockets.

The root is a parameter, so that tests can use an artificial tree. Methods that read files of a
process raise ProcessLookupError if it has exited, and PermissionError if the kernel denies access.

Paths with process ids are strings, because pathlib interns each component of a path (Lib/pathlib.py in
CPython 3.11). Each new id would enlarge CPython's table of interned strings, which is rebuilt at several
times its size.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import struct
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

    #: One end of a TCP connection, as ``socket.getsockname()`` returns it for IPv4.
    Address: TypeAlias = tuple[str, int]

#: Namespaces of a server that are compared with ours.
NAMESPACES = ("mnt", "pid", "user", "net")

_GONE = {errno.ENOENT, errno.ESRCH, errno.ENOTDIR, errno.EINVAL}
_REFUSED = {errno.EACCES, errno.EPERM}
_ACCEPTS = 0x10000  # __SO_ACCEPTCON in include/uapi/linux/net.h: the socket listens
_TCP_LISTEN = "0A"
_TCP_LINE = 150  # bytes of a padded line (TMPSZ in net/ipv4/tcp_ipv4.c), to read one line at a time
#: Limits on the data that is read: a server may have very many descriptors, and other users may fill the
#: host's socket tables.
_CMDLINE_BYTES: Final = 1 << 16
_MAX_DESCRIPTORS: Final = 1 << 16
_MAX_LINES: Final = 1 << 17
#: A line of net/unix. The groups are flags, inode and path.
_UNIX_LINE = re.compile(
    r"[\da-fA-F]+: [\da-fA-F]{8} [\da-fA-F]{8} ([\da-fA-F]{8}) [\da-fA-F]{4} [\da-fA-F]{2} +(\d{1,20}) (.+)",
    re.ASCII,
)
_TCP_BEFORE_ESTABLISHED = {_TCP_LISTEN, "03"}  # Linux < 4.4 lists half-open sockets too


@dataclass(frozen=True, slots=True)
class Stat:
    """Fields of /proc/PID/stat; ``start_time`` is in clock ticks since boot."""

    comm: str
    state: str
    threads: int
    start_time: int


@dataclass(frozen=True, slots=True)
class Owner:
    """The user ids of a process: real, effective, saved, file system.

    ``nested`` is true if the process is in another pid namespace.
    """

    uids: tuple[int, ...]
    nested: bool


@contextmanager
def _gone_or_refused(pid: int) -> Iterator[None]:
    """Convert an OSError of /proc to ProcessLookupError or PermissionError (see ``_raise``)."""
    try:
        yield
    except OSError as error:
        _raise(pid, error)


def _raise(pid: int, error: OSError) -> NoReturn:
    """Raise ProcessLookupError or PermissionError for an error of /proc or, for other causes, ``error``."""
    if error.errno in _REFUSED:
        raise PermissionError(error.errno, f"/proc/{pid}: {error.strerror}") from error
    if error.errno in _GONE:
        raise ProcessLookupError(errno.ESRCH, f"process {pid} is gone") from error
    raise error


def _field(status: bytes, name: bytes) -> list[bytes]:
    """Return the values of one line of /proc/PID/status."""
    begin = status.find(b"\n" + name + b":")
    return status[begin + len(name) + 2 :].split(b"\n", 1)[0].split() if begin >= 0 else []


def _address(address: Address) -> tuple[bytes, int]:
    """Return the address as 16 bytes (IPv4 mapped into IPv6), and the port."""
    parsed = ipaddress.ip_address(address[0].partition("%")[0])
    mapped = b"\0" * 10 + b"\xff\xff" + parsed.packed if parsed.version == 4 else parsed.packed
    return mapped, address[1]


def _table_address(text: str) -> tuple[bytes, int]:
    """Parse an address of net/tcp or net/tcp6, which consists of 32-bit words in the host's byte order."""
    words, _, port = text.partition(":")
    packed = b"".join(struct.pack("=I", int(words[at : at + 8], 16)) for at in range(0, len(words), 8))
    return (b"\0" * 10 + b"\xff\xff" + packed if len(packed) == 4 else packed), int(port, 16)


@dataclass(frozen=True, slots=True)
class ProcFs:
    """A /proc file system, by default our own."""

    root: Path = Path("/proc")

    def pids(self) -> list[int]:
        """Return all process ids (thread group leaders), ascending."""
        return sorted(int(entry.name) for entry in os.scandir(self.root) if entry.name.isdecimal())

    def path(self, pid: int, *parts: str) -> str:
        """Return the path of a file of one process, as a string."""
        return "/".join((str(self.root), str(pid), *parts))

    def inside(self, pid: int, path: str) -> str:
        """Return the path by which we can open a path in the process's file system (/proc/PID/root)."""
        return self.path(pid, "root") + path

    def exists(self, pid: int) -> bool:
        """Return whether a process or thread with this id exists now."""
        return os.path.isdir(self.path(pid))  # noqa: PTH112

    def stat(self, pid: int) -> Stat:
        """Read /proc/PID/stat. The comm is in parentheses and may itself contain spaces and parentheses."""
        text = self._read(pid, "stat").decode(errors="replace")
        head, _, tail = text.rpartition(")")
        fields = tail.split()
        try:
            return Stat(head.partition("(")[2], fields[0], int(fields[17]), int(fields[19]))
        except (IndexError, ValueError) as error:
            raise ProcessLookupError(errno.ESRCH, f"process {pid} is gone") from error

    def cpu_ticks(self, pid: int) -> int:
        """Return the user and system time of all threads so far, in clock ticks (/proc/PID/stat)."""
        fields = self._read(pid, "stat").rpartition(b")")[2].split()
        return int(fields[11]) + int(fields[12])

    def status(self, pid: int) -> dict[str, str]:
        """Read /proc/PID/status as ``{"State": "S (sleeping)", "TracerPid": "0", …}``."""
        lines = self._read(pid, "status").decode(errors="replace").splitlines()
        pairs = (line.partition(":") for line in lines)
        return {name: value.strip() for name, _, value in pairs}

    def owner(self, pid: int) -> Owner:
        """Return the owner from /proc/PID/status, which every user can read unless hidepid is set."""
        text = b"\n" + self._read(pid, "status")
        uids, inner = (_field(text, name) for name in (b"Uid", b"NSpid"))
        return Owner(tuple(map(int, uids)), len(inner) > 1)

    def cmdline(self, pid: int) -> list[str]:
        """Return the arguments; an empty list for a kernel thread or a zombie (/proc/PID/cmdline)."""
        raw = self._read(pid, "cmdline", _CMDLINE_BYTES).decode(errors="surrogateescape")
        return raw.rstrip("\0").split("\0") if raw else []

    def exe(self, pid: int) -> tuple[str, bool]:
        """Return ``(path, deleted)`` of the executable. Raise ProcessLookupError if it has none."""
        path = self._link(pid, "exe")
        return path.removesuffix(" (deleted)"), path.endswith(" (deleted)")

    def cwd(self, pid: int) -> str:
        """Return the current directory as this process sees it (/proc/PID/cwd)."""
        return self._link(pid, "cwd")

    def root_of(self, pid: int) -> str:
        """Return the root directory as this process sees it: ``/`` or a chroot (/proc/PID/root)."""
        return self._link(pid, "root")

    def namespaces(self, pid: int | str) -> dict[str, str]:
        """Return ``{"mnt": "mnt:[4026531841]", …}`` (/proc/PID/ns). If ``pid`` is "self", return our own."""
        return {name: self.namespace(pid, name) for name in NAMESPACES}

    def namespace(self, pid: int | str, name: str) -> str:
        """Return one namespace, such as ``user:[4026531837]``."""
        with _gone_or_refused(int(pid) if str(pid).isdecimal() else 0):
            return os.readlink(f"{self.root}/{pid}/ns/{name}")  # noqa: PTH115

    def network(self, pid: int | str) -> int:
        """Return a number that identifies the process's network namespace; for "self", our own.

        Unlike ``namespace``, this needs no privileges. The files below /proc/PID/net belong to the namespace,
        and each has its own inode (get_proc_task_net in fs/proc/proc_net.c, proc_get_inode in inode.c).
        """
        with _gone_or_refused(int(pid) if str(pid).isdecimal() else 0):
            return os.stat(f"{self.root}/{pid}/net/unix").st_ino  # noqa: PTH116

    def cgroup(self, pid: int) -> str:
        """Read /proc/PID/cgroup, which contains the container's id."""
        return self._read(pid, "cgroup").decode(errors="replace")

    def mapped_names(self, pid: int) -> frozenset[str]:
        """Return the base names of the files that the process has mapped (/proc/PID/maps).

        The first line, which is a mapping of the executable, is skipped.
        """
        return frozenset(
            line.rstrip("\n").rpartition("/")[2] for line in islice(self._lines(pid, "maps"), _MAX_LINES)
        )

    def socket_inodes(self, pid: int) -> set[int]:
        """Return the inodes of all sockets that the process has open (links of /proc/PID/fd)."""
        with _gone_or_refused(pid), os.scandir(self.path(pid, "fd")) as entries:
            descriptors = [entry.path for entry in islice(entries, _MAX_DESCRIPTORS)]
        inodes = set()
        for descriptor in descriptors:
            try:
                target = os.readlink(descriptor)  # noqa: PTH115, thousands of them
            except OSError:  # the descriptor has been closed
                continue
            if target.startswith("socket:["):
                inodes.add(int(target[8:-1]))
        return inodes

    def unix_listeners(self, pid: int) -> dict[int, str]:
        """Return ``{inode: path}`` of listening Unix sockets in the process's network namespace (net/unix).

        Any user can choose a path that contains a newline, so malformed lines are skipped, and only the first
        line of each inode counts.
        """
        found: dict[int, str] = {}
        for line in islice(self._lines(pid, "net/unix"), _MAX_LINES):
            match = _UNIX_LINE.match(line)
            if match and int(match[1], 16) & _ACCEPTS:
                found.setdefault(int(match[2]), match[3])
        return found

    def tcp_listeners(self, pid: int) -> Iterator[tuple[int, int]]:
        """Yield ``(inode, port)`` of each TCP listener in the process's network namespace (net/tcp and tcp6).

        Callers should stop early. Listeners come first. To find a connection after them, the kernel walks a
        hash table of up to 524,288 buckets by default (tcp_init in net/ipv4/tcp.c), which takes milliseconds.
        The iteration ends at the first connection.
        """
        for name in ("net/tcp", "net/tcp6"):
            try:
                yield from self._tcp_listeners(pid, name)
            except ProcessLookupError:  # a kernel without IPv6 has no tcp6
                continue

    def _tcp_listeners(self, pid: int, name: str) -> Iterator[tuple[int, int]]:
        for line in islice(self._lines(pid, name, _TCP_LINE), _MAX_LINES):
            fields = line.split()
            if fields[3] not in _TCP_BEFORE_ESTABLISHED:
                return
            if fields[3] == _TCP_LISTEN:
                yield int(fields[9]), int(fields[1].rpartition(":")[2], 16)

    def tcp_owner(self, pid: int | str, ours: Address, theirs: Address) -> tuple[int, int] | None:
        """Return ``(uid, inode)`` of the other end of a connection; None if that end is not on this host.

        ``ours`` and ``theirs`` are the addresses as our socket reports them; the other end swaps them.
        """
        wanted = _address(theirs), _address(ours)
        for name in ("net/tcp", "net/tcp6"):
            with suppress(ProcessLookupError):  # a kernel without IPv6 has no tcp6
                for line in islice(self._lines(pid, name), _MAX_LINES):
                    fields = line.split(maxsplit=10)
                    if len(fields) > 9 and (_table_address(fields[1]), _table_address(fields[2])) == wanted:
                        return int(fields[7]), int(fields[9])
        return None

    def _read(self, pid: int, name: str, most: int = -1) -> bytes:
        with _gone_or_refused(pid), open(self.path(pid, name), "rb") as file:  # noqa: PTH123
            return file.read(most)

    def _link(self, pid: int, name: str) -> str:
        """Read a link. Speed matters: every process on the host is read every two seconds."""
        try:
            return os.readlink(self.path(pid, name))  # noqa: PTH115
        except OSError as error:
            _raise(pid, error)

    def _lines(self, pid: int | str, name: str, at_once: int = 1 << 16) -> Iterator[str]:
        """Yield the lines of a table without its heading. Read ``at_once`` bytes at a time."""
        who = int(pid) if str(pid).isdecimal() else 0
        path = f"{self.root}/{pid}/{name}"
        with _gone_or_refused(who), open(path, "rb", buffering=at_once) as table:  # noqa: PTH123
            next(table, None)
            for line in table:
                yield line.decode(errors="surrogateescape")
