"""Find a server's socket, port and data directory from /proc and the server's command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from innoscope.target.model import Target
    from innoscope.target.proc import ProcFs

_DEFAULT_PORT = 3306
_MAX_PORT: Final = 65535
_PORT_DIGITS: Final = 5
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


def option_port(arguments: Sequence[str]) -> int | None:
    """Return the port on the command line; None if it is missing or invalid."""
    text = option(arguments, "port", "-P") or ""
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= _PORT_DIGITS else 0
    return number if 0 < number <= _MAX_PORT else None


def find(proc: ProcFs, pid: int, arguments: Sequence[str]) -> Endpoints:
    """Return the socket and port on which the process listens, else those on its command line."""
    named = option(arguments, "socket", "-S")
    named_port = option_port(arguments)
    try:
        inodes = proc.socket_inodes(pid)
        paths = [path for inode, path in proc.unix_listeners(pid).items() if inode in inodes]
        port = _port(proc, pid, inodes, named_port)
    except PermissionError:
        return Endpoints(named, named_port)
    socket = _choose_socket(paths, named) or named
    return Endpoints(_absolute(proc, pid, socket), port)


def listens(proc: ProcFs, target: Target) -> bool:
    """Return whether the server really listens on the target's socket; an option does not prove it."""
    try:
        inodes = proc.socket_inodes(target.pid)
        return any(
            target.socket in (path, _absolute(proc, target.pid, path))
            for inode, path in proc.unix_listeners(target.pid).items()
            if inode in inodes
        )
    except (PermissionError, ProcessLookupError):
        return False


def _choose_socket(paths: Sequence[str], named: str | None) -> str | None:
    """Return the listening socket of the classic protocol, not that of the X protocol (mysqlx.sock)."""
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
    """Make ``--socket`` absolute. It is relative to the data directory, the server's current directory."""
    if path is None or path.startswith("/"):
        return path
    try:
        return f"{strip_root(proc.cwd(pid), proc.root_of(pid)).rstrip('/')}/{path}"
    except (PermissionError, ProcessLookupError):
        return path


def datadir(proc: ProcFs, pid: int, arguments: Sequence[str], root: str) -> str | None:
    """Return the data directory in the server's file system: ``--datadir``, else its current directory."""
    named = option(arguments, "datadir", "-h")
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
