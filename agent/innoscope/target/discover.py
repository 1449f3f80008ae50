"""Find the servers on this host, and select one of them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from innoscope import _native
from innoscope.common.errors import NoSuchProcess, NoTarget, NotAServer
from innoscope.target import allowed_users, choice, endpoints, executable, version
from innoscope.target.container import container_of
from innoscope.target.model import Target
from innoscope.target.native_errors import gone, no_rights
from innoscope.target.proc import ProcFs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from innoscope.target.allowed_users import Ignored, OwnerRule

#: Base names of server executables: mysqld, mariadbd, mysqld-debug, … but not mysqld_safe or an exporter.
_SERVER = re.compile(r"(?:mysqld|mariadbd)(?:[-.](?:debug|bin|max|opt|stripped|\d[\d.]*))?")
_LIST_REMEDY = "innoscope targets"
#: Maximum number of ignored processes to list.
_SHOWN: Final = 4


def is_server(proc: ProcFs, pid: int) -> bool:
    """Return whether the process runs a server executable. If its path is unreadable, check comm instead."""
    try:
        name = proc.exe(pid)[0].rpartition("/")[2]
    except PermissionError:
        name = proc.stat(pid).comm
    return _SERVER.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class Scan:
    """The result of ``scan``.

    ``servers`` lists the pids of all accepted servers, including those in containers, in ascending order.
    ``ignored`` lists processes that have a server's name but are not accepted as servers.
    """

    servers: tuple[int, ...]
    ignored: tuple[Ignored, ...]


def scan(proc: ProcFs, rule: OwnerRule) -> Scan:
    """Find all processes on this host with a server's name, and decide which ones are accepted as servers."""
    servers, ignored = [], []
    for pid in proc.pids():
        try:
            if is_server(proc, pid) and proc.stat(pid).state not in "ZX":
                refused = allowed_users.ignored(rule, proc, pid)
                if refused is None:
                    servers.append(pid)
                else:
                    ignored.append(refused)
        except (ProcessLookupError, PermissionError):  # the process has exited, or is a kernel thread
            continue
    return Scan(tuple(servers), tuple(ignored))


def identify(proc: ProcFs, pid: int) -> Target:
    """Return the properties of one server, without SQL.

    Fields that we are not allowed to read stay empty, so that an unprivileged user still gets a list. Raise
    ProcessLookupError if the server exits.
    """
    stat = proc.stat(pid)
    where = executable.locate(proc, pid)
    arguments = proc.cmdline(pid)
    listens = endpoints.find(proc, pid, arguments)
    detected = version.detect(proc, pid, where.path)
    file = executable.describe(proc, pid, where)
    if proc.stat(pid).start_time != stat.start_time:
        raise ProcessLookupError(pid)
    return Target(
        pid=pid,
        start_time=stat.start_time,
        flavour=detected.flavour,
        version=detected.number,
        version_text=detected.text,
        version_from=detected.source,
        executable=where.path,
        deleted=where.deleted,
        build_id=file.build_id,
        socket=listens.socket,
        port=listens.port,
        datadir=endpoints.datadir(proc, pid, arguments, where.root),
        threads=stat.threads,
        root=where.root,
        container=container_of(proc, pid),
        symbols=file.symbols,
    )


def find_all(proc: ProcFs | None = None) -> list[Target]:
    """Return all servers of allowed users on this host, sorted by pid.

    Raise BadFile if the rule for allowed users is invalid.
    """
    return survey(proc)[0]


def survey(proc: ProcFs | None = None) -> tuple[list[Target], tuple[Ignored, ...]]:
    """Return all servers of allowed users, and the processes that are ignored because of their owner.

    Raise BadFile if the rule for allowed users is invalid.
    """
    proc = proc or ProcFs()
    found = scan(proc, allowed_users.load())
    return _identify_all(proc, found.servers), found.ignored


def find_one(
    pid: int | None = None,
    socket: str | None = None,
    port: int | None = None,
    *,
    proc: ProcFs | None = None,
    readable: bool = True,
) -> Target:
    """Return the server that matches; without arguments, the only running server.

    Root may name any user's server by ``pid``. Raise NoTarget if no server or several servers match,
    NoSuchProcess if the process does not exist, NotAServer if it is not a server or its owner is not allowed,
    BadFile if servers.toml is invalid, or NoRights if we are not allowed to inspect the server. With
    ``readable=False``, such a server is returned with the fields that are known.

    ``Target.chosen`` is set if ``pid`` names the server, or if ``socket`` or ``port`` reaches it from here.
    """
    proc = proc or ProcFs()
    target = _choose(proc, pid, socket, port)
    if readable:
        _must_be_readable(proc, target.pid)
    named = (socket, port) != (None, None) and choice.chosen_by(proc, target, socket, port)
    return replace(target, chosen=pid is not None or named)


def _choose(proc: ProcFs, pid: int | None, socket: str | None, port: int | None) -> Target:
    if pid is not None:
        target = _by_pid(proc, pid)
        if not _matches(proc, target, socket, port):
            raise NoTarget(f"process {pid} does not listen there: {_brief(target)}", remedy=_LIST_REMEDY)
        return target
    seen = scan(proc, allowed_users.load())
    if len(seen.servers) == 1 and socket is None and port is None:
        return _by_pid(proc, seen.servers[0])
    found = _identify_all(proc, seen.servers)
    matching = [target for target in found if _matches(proc, target, socket, port)]
    if len(matching) == 1:
        return matching[0]
    raise _none_or_several(found, seen.ignored, matching, socket, port)


def still_same(target: Target, proc: ProcFs | None = None) -> bool:
    """Return whether the pid still belongs to the same process. A reused pid has a different start time."""
    try:
        stat = (proc or ProcFs()).stat(target.pid)
    except (ProcessLookupError, PermissionError):
        return False
    return stat.start_time == target.start_time and stat.state not in "ZX"


def _identify_all(proc: ProcFs, pids: Iterable[int]) -> list[Target]:
    found = []
    for pid in pids:
        try:
            found.append(identify(proc, pid))
        except (ProcessLookupError, PermissionError):
            continue
    return found


def _by_pid(proc: ProcFs, pid: int) -> Target:
    """Return the server with this pid.

    Raise NoSuchProcess if there is no such process, NotAServer if it is not a server or its owner is not
    allowed, or NoRights if we are not allowed to inspect it.
    """
    try:
        leader = int(proc.status(pid).get("Tgid") or pid)
        if leader != pid:
            raise NotAServer(f"{pid} is a thread of process {leader}", remedy=f"--pid {leader}")
        if proc.stat(pid).state in "ZX":
            raise NoSuchProcess(f"process {pid} has exited (zombie)", remedy=_LIST_REMEDY)
        if not is_server(proc, pid):
            raise _not_a_server(proc, pid)
        refused = None if os.geteuid() == 0 else allowed_users.ignored(allowed_users.load(), proc, pid)
        if refused is not None:
            raise NotAServer(str(refused), remedy=f"sudo innoscope … --pid {pid}, or {refused.remedy}")
        return identify(proc, pid)
    except ProcessLookupError as error:
        if proc.exists(pid):  # a process without an executable is a kernel thread
            raise _not_a_server(proc, pid) from error
        raise gone(pid) from error
    except PermissionError as error:
        raise no_rights(pid, error.strerror or "") from error


def _must_be_readable(proc: ProcFs, pid: int) -> None:
    """Raise NoRights if the executable cannot be read, because nothing works without it.

    Raise NoSuchProcess if the process has exited.
    """
    try:
        proc.exe(pid)
    except PermissionError as error:
        raise no_rights(pid, "its executable cannot be read") from error
    except ProcessLookupError as error:
        raise gone(pid) from error


def _not_a_server(proc: ProcFs, pid: int) -> NotAServer:
    try:
        name = proc.stat(pid).comm
    except (ProcessLookupError, PermissionError):
        name = "?"
    servers = scan(proc, allowed_users.load()).servers
    others = ", ".join(str(server) for server in servers) or "none"
    return NotAServer(
        f"process {pid} ({name}) is not a mysqld or mariadbd", remedy=f"servers on this host: {others}"
    )


def _matches(proc: ProcFs, target: Target, socket: str | None, port: int | None) -> bool:
    """Return whether the target has this port and socket, if given.

    The socket is a path as seen by the server or by us.
    """
    if port is not None and target.port != port:
        return False
    return socket is None or (
        target.socket is not None
        and _same_file(socket, target.socket, proc.inside(target.pid, target.socket))
    )


def _same_file(wanted: str, named: str, seen: str) -> bool:
    if wanted == named:
        return True
    try:
        return _native.file_identity(wanted) == _native.file_identity(seen)
    except OSError:
        return False


def none_found(ignored: Sequence[Ignored]) -> NoTarget:
    """Return the error for a host without servers. The error lists the ignored processes."""
    if not ignored:
        return NoTarget(
            "no mysqld or mariadbd is running on this host",
            remedy="start one, or run innoscope on the server's host",
        )
    what = "no mysqld or mariadbd of an allowed user is running on this host"
    return NoTarget(what, remedy="\n".join(describe_ignored(ignored)))


def describe_ignored(ignored: Sequence[Ignored]) -> Iterator[str]:
    """Yield lines about the first few ignored processes, each with a remedy."""
    for one in ignored[:_SHOWN]:
        yield f"{one}; to watch it: {one.remedy}"
    if len(ignored) > _SHOWN:
        yield f"and {len(ignored) - _SHOWN} more"


def _none_or_several(
    found: list[Target],
    ignored: Sequence[Ignored],
    matching: list[Target],
    socket: str | None,
    port: int | None,
) -> NoTarget:
    if not found:
        return none_found(ignored)
    choices = [f"--pid {target.pid:<8} {_brief(target)}" for target in matching or found]
    choices += describe_ignored(ignored)
    if matching:
        what = f"{len(matching)} servers are running: choose one"
    else:
        wanted = f"socket {socket}" if socket is not None else f"port {port}"
        what = f"no server listens on {wanted}; running servers"
    return NoTarget(what, remedy="\n".join(choices))


def _brief(target: Target) -> str:
    """Return one line that identifies a server: flavour, version, socket or port, data directory."""
    number = ".".join(map(str, target.version)) or "unknown version"
    port = f"port {target.port}" if target.port else None
    return "  ".join(filter(None, (target.flavour, number, target.socket or port, target.datadir)))
