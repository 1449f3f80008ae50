"""Find a server's socket, port and data directory from /proc and the server's command line."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from innoscope.target.proc import ProcFs

_log = logging.getLogger(__name__)

_DEFAULT_PORT = 3306
_MAX_PORT: Final = 65535
_PORT_DIGITS: Final = 5
#: Maximum length of a path, in bytes: PATH_MAX in include/uapi/linux/limits.h.
_PATH_BYTES: Final = 4096
#: Maximum length of a socket's path, in bytes: sun_path without its null byte. Servers with a longer
#: ``--socket`` do not start (sql/conn_handler/socket_connection.cc in MySQL since 5.7, otherwise
#: sql/mysqld.cc).
_SOCKET_BYTES: Final = 107
_OTHER_PORTS = {33060, 33062, 4567, 4568}  # X protocol, admin_port, Galera


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The Unix socket (a path in the server's file system) and the TCP port; either may be None."""

    socket: str | None
    port: int | None


def option(arguments: Sequence[str], name: str, short: str) -> str | None:
    """Return the last value of ``--name=value``, ``--name value``, ``-Svalue`` or ``-S value``."""
    value = None
    for position, argument in enumerate(arguments[1:], start=1):
        following = arguments[position + 1] if position + 1 < len(arguments) else None
        if argument in (f"--{name}", short):
            value = following
        elif argument.startswith(f"--{name}="):
            value = argument.partition("=")[2]
        elif argument.startswith(short) and not argument.startswith("--"):
            value = argument.removeprefix(short)
    return value


def _path_option(pid: int, arguments: Sequence[str], name: str, short: str, most_bytes: int) -> str | None:
    """Return the value of an option that is a path.

    If the path is longer than ``most_bytes``, log a warning and return None.
    """
    value = option(arguments, name, short)
    size = len(os.fsencode(value)) if value else 0
    if size <= most_bytes:
        return value
    extra = {"pid": pid, "option": f"--{name}", "reason": f"{size:,} bytes, the limit is {most_bytes:,}"}
    _log.warning("option ignored", extra=extra)
    return None


def option_port(arguments: Sequence[str]) -> int | None:
    """Return the port on the command line; None if it is missing or invalid."""
    text = option(arguments, "port", "-P") or ""
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= _PORT_DIGITS else 0
    return number if 0 < number <= _MAX_PORT else None


def find(proc: ProcFs, pid: int, arguments: Sequence[str]) -> Endpoints:
    """Return the socket and port on which the process listens.

    If no socket is found, use the one on the command line. If the kernel denies access to the process's
    descriptors, use the socket and port on the command line.
    """
    named = _path_option(pid, arguments, "socket", "-S", _SOCKET_BYTES)
    named_port = option_port(arguments)
    try:
        inodes = proc.socket_inodes(pid)
        paths = [path for inode, path in proc.unix_listeners(pid).items() if inode in inodes]
        port = _port(proc, pid, inodes, named_port)
    except PermissionError:
        return Endpoints(named, named_port)
    socket = _choose_socket(paths, named) or named
    return Endpoints(_absolute(proc, pid, socket), port)


def listens_on_socket(proc: ProcFs, pid: int) -> bool:
    """Return whether the process listens on a Unix socket. Raise PermissionError if access is denied."""
    return not proc.socket_inodes(pid).isdisjoint(proc.unix_listeners(pid))


def _choose_socket(paths: Sequence[str], named: str | None) -> str | None:
    """Return the listening socket of the classic protocol, not the X protocol's (mysqlx.sock)."""
    if named in paths:
        return named
    candidates = sorted(path for path in paths if not path.startswith("@") and "mysqlx" not in path)
    return candidates[0] if candidates else None


def _port(proc: ProcFs, pid: int, inodes: set[int], named: int | None) -> int | None:
    """Return the port of the classic protocol; None with --skip-networking, or before the server listens."""
    ports = set()
    for inode, port in proc.tcp_listeners(pid):
        if inode in inodes:
            if port == (named or _DEFAULT_PORT):
                return port
            ports.add(port)
    if _DEFAULT_PORT in ports:
        return _DEFAULT_PORT
    return min(ports - _OTHER_PORTS, default=None)


def _absolute(proc: ProcFs, pid: int, path: str | None) -> str | None:
    """Make ``--socket`` absolute. Servers interpret it relative to the data directory, where they run."""
    if path is None or path.startswith("/"):
        return path
    try:
        return f"{strip_root(proc.cwd(pid), proc.root_of(pid)).rstrip('/')}/{path}"
    except (PermissionError, ProcessLookupError):
        return path


def datadir(proc: ProcFs, pid: int, arguments: Sequence[str], root: str) -> str | None:
    """Return the data directory in the server's file system.

    It is an absolute ``--datadir``, else the server's current directory, else a relative ``--datadir``.
    """
    named = _path_option(pid, arguments, "datadir", "-h", _PATH_BYTES)
    if named is not None and named.startswith("/"):
        return named.rstrip("/") or "/"
    try:
        return strip_root(proc.cwd(pid).removesuffix(" (deleted)"), root)
    except (PermissionError, ProcessLookupError):
        return named


def strip_root(path: str, root: str) -> str:
    """Convert a path in our file system to the path that a process with that root directory sees."""
    if root != "/" and (path + "/").startswith(root + "/"):
        return path.removeprefix(root) or "/"
    return path
