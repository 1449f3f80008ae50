"""Decide which processes with a server's name are treated as servers, by the user ids of the process.

Any local user can run a program named ``mysqld``, and root in a container can run one as root. Therefore each
user id of a process (real, effective, saved, file system) must be allowed for the place where it runs:

* on this host: root, ``users`` (by default mysql and mariadb), and our own user if we are not root;
* in a container (another pid namespace, our user namespace): ``container_uids``;
* in another user namespace (rootless or remapped containers): ``remapped_uids``, which are ids on this host.
"""

from __future__ import annotations

import os
import pwd
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

from msgspec import Meta

from innoscope.common import typed
from innoscope.common.errors import BadFile
from innoscope.target.container import in_foreign_container
from innoscope.target.process_users import user_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from innoscope.target.proc import ProcFs

    #: Inclusive ranges of user ids.
    Uids: TypeAlias = tuple[tuple[int, int], ...]

DEFAULT_FILE: Final = "/etc/innoscope/servers.toml"
#: Environment variable with the path of a file that replaces the default one.
VARIABLE: Final = "INNOSCOPE_SERVERS_CONFIG"

_MAX_SERVERS: Final = 64
_MAX_UID: Final = (1 << 32) - 2
_MAX_BYTES: Final = 1 << 16
#: The uid that the kernel shows for every uid outside our user namespace (kernel.overflowuid).
_OVERFLOW: Final = 65534
_EXPLAINED: Final = "packaging/servers.toml explains all keys"
#: ``"low"`` or ``"low-high"``.
_RANGE: Final = "[0-9]+(-[0-9]+)?"
_Uid: TypeAlias = Annotated[int, Meta(ge=0, le=_MAX_UID)]
_UidRange: TypeAlias = Annotated[str, Meta(pattern=rf"\A{_RANGE}\Z")]


class _File(typed.Entry, frozen=True):
    """The parsed file, before names are resolved to uids."""

    users: tuple[_Uid | str, ...] = ("mysql", "mariadb")
    #: Server uids in the images of Red Hat and Oracle (27), Docker (999), Percona and Bitnami (1001).
    container_uids: tuple[_Uid | _UidRange, ...] = (27, 999, 1001)
    remapped_uids: tuple[_Uid | _UidRange, ...] = ()
    max_servers: Annotated[int, Meta(ge=1)] = _MAX_SERVERS

    def __post_init__(self) -> None:
        for entry in (*self.users, *self.container_uids, *self.remapped_uids):
            low, high = _range(entry) or (0, 0)
            if not low <= high <= _MAX_UID:
                raise ValueError(f"{entry!r} is not a range of uids")


@dataclass(frozen=True, slots=True)
class OwnerRule:
    """The user ids that may own a server. ``max_servers`` limits the number of servers to watch."""

    users: Uids
    container_uids: Uids
    remapped_uids: Uids
    max_servers: int = _MAX_SERVERS


@dataclass(frozen=True, slots=True)
class Ignored:
    """A process with a server's name that the rule rejects. Its command line and memory were not read."""

    pid: int
    name: str
    owner: str
    place: str  # host, container or user namespace
    remedy: str

    def __str__(self) -> str:
        where = "" if self.place == "host" else f" in a {self.place}"
        return f"process {self.pid} ({self.name}): ignored, owned by {self.owner}{where}"


def load(path: str | None = None) -> OwnerRule:
    """Read the rule from ``path``, else the file named in VARIABLE, else DEFAULT_FILE if it exists.

    Raise BadFile if the file is unreadable or malformed, if a named file does not exist, or if users other
    than root and ourselves can write to the file.
    """
    named = path or os.environ.get(VARIABLE)
    text = _read(Path(named or DEFAULT_FILE), required=named is not None)
    try:
        file = typed.decode_toml(text, _File, named or DEFAULT_FILE)
    except BadFile as error:
        raise BadFile(error.what, remedy=_EXPLAINED) from error
    users, container, remapped = map(_uids, (file.users, file.container_uids, file.remapped_uids))
    return OwnerRule(users, container, remapped, file.max_servers)


def ignored(rule: OwnerRule, proc: ProcFs, pid: int) -> Ignored | None:
    """Return None if the process's user may run a server, else the owner and a remedy.

    This reads /proc/PID/status and, if the uids alone do not decide, the process's cgroup and user namespace.
    """
    owner = proc.owner(pid)
    uids = frozenset(owner.uids)
    if not uids:
        return _refused(proc, pid, uids, "host")
    if not owner.nested and (_all_in(uids, rule.users) or _is_ourselves(uids)):
        return None
    if not owner.nested and uids == {0} and not in_foreign_container(proc, pid):
        return None
    wanted = rule.container_uids if owner.nested else ()
    if not _all_in(uids, (*wanted, *rule.remapped_uids)):
        return _refused(proc, pid, uids, "container" if owner.nested else "host")
    same = _shares_user_namespace(proc, pid)
    if same is None:  # the kernel denies the comparison: only the sensor and root can decide
        return _refused(proc, pid, uids, "container")
    if _all_in(uids, wanted if same else rule.remapped_uids):
        return None
    return _refused(proc, pid, uids, "container" if same else "user namespace")


def _refused(proc: ProcFs, pid: int, uids: frozenset[int], place: str) -> Ignored:
    if uids and _shares_user_namespace(proc, pid) is False:
        place = "user namespace"
    key = {"host": "users", "container": "container_uids"}.get(place, "remapped_uids")
    owner = " and ".join(map(user_name, sorted(uids))) or "an unknown user"
    remedy = f"add {', '.join(_entry(key, uid) for uid in sorted(uids))} to {key} in {_file()}"
    if uids == {_OVERFLOW}:  # in a unit with PrivateUsers=, only its own user and root are mapped
        owner, remedy = "a user without a uid in this namespace", "run as root on the host: innoscope targets"
    return Ignored(pid, proc.stat(pid).comm, owner, place, remedy)


def _entry(key: str, uid: int) -> str:
    """Return the entry for this uid in the list ``key``."""
    if key != "users":
        return str(uid)
    name = user_name(uid)
    return f'"{uid}"' if name.startswith("uid ") else f'"{name}"'


def _is_ourselves(uids: frozenset[int]) -> bool:
    """Return whether the process runs as our own user.

    Return False if we run as root, or as the overflow uid, which may stand for any user.
    """
    own = os.getuid()
    return own not in (0, _OVERFLOW) and os.geteuid() == own and uids == {own}


def _shares_user_namespace(proc: ProcFs, pid: int) -> bool | None:
    """Return whether the process is in our user namespace; None if the kernel denies the comparison."""
    try:
        return proc.namespace(pid, "user") == proc.namespace("self", "user")
    except PermissionError:
        return None


def _all_in(uids: Iterable[int], allowed: Uids) -> bool:
    return all(any(low <= uid <= high for low, high in allowed) for uid in uids)


def _file() -> str:
    return os.environ.get(VARIABLE) or DEFAULT_FILE


def _read(path: Path, *, required: bool) -> str:
    try:
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            if about.st_uid not in (0, os.geteuid()) or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise _bad(
                    str(path), "users other than root can write to it", f"chown root {path}; chmod 644 {path}"
                )
            data = file.read(_MAX_BYTES + 1)
    except FileNotFoundError as error:
        if required:
            raise _bad(str(path), "no such file", f"unset {VARIABLE}") from error
        return ""
    except OSError as error:
        raise _bad(str(path), str(error.strerror), f"chmod 644 {path}") from error
    if len(data) > _MAX_BYTES:
        raise _bad(str(path), f"it is longer than {_MAX_BYTES:,} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise _bad(str(path), "it is not UTF-8") from error


def _uids(entries: Iterable[int | str]) -> Uids:
    """Convert names, numbers and ``"low-high"`` to ranges of uids; omit unknown names."""
    found: list[tuple[int, int]] = []
    for entry in entries:
        pair = _range(entry)
        found += _named(str(entry)) if pair is None else [pair]
    return tuple(found)


def _range(entry: int | str) -> tuple[int, int] | None:
    """Return the range of a number or ``"low-high"``; None for a name."""
    if not re.fullmatch(_RANGE, str(entry)):
        return None
    low, _, high = str(entry).partition("-")
    return int(low), int(high or low)


def _named(user: str) -> Uids:
    try:
        uid = pwd.getpwnam(user).pw_uid
    except KeyError:
        return ()
    return ((uid, uid),)


def _bad(path: str, why: str, remedy: str = _EXPLAINED) -> BadFile:
    return BadFile(f"cannot use {path}: {why}", remedy=remedy)
