"""Giving up rights for good: what has a network has no privileges."""

from __future__ import annotations

import ctypes
import grp
import os
import pwd
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from innoscope.common.errors import NoRights

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: The package's own account, else the one that owns nothing.
_USERS: Final = ("innoscope", "nobody")
# linux/prctl.h, linux/capability.h
_PR_CAPBSET_DROP: Final = 24
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_CLEAR_ALL: Final = 4
_CAPABILITY_VERSION_3: Final = 0x20080522
_MOST_CAPABILITIES: Final = 64


@dataclass(frozen=True, slots=True)
class Account:
    """Whom to become."""

    name: str
    uid: int
    gid: int
    group: str


def unprivileged() -> Account:
    """The account that root's agent becomes. Raises NoRights where a host has none."""
    for name in _USERS:
        try:
            entry = pwd.getpwnam(name)
            return Account(name, entry.pw_uid, entry.pw_gid, grp.getgrgid(entry.pw_gid).gr_name)
        except KeyError:
            continue
    raise NoRights("there is no user innoscope and no user nobody", remedy="useradd --system innoscope")


def readable_by(account: Account, files: Sequence[Path]) -> bool:
    """Return whether that account can read all files, by trying it in a forked child that becomes it.

    The child ends with ``os._exit``: the cleanups that Python runs at its end are the parent's. No program
    is run, because the agent starts none but a sensor.
    """
    child = os.fork()
    if child == 0:
        try:
            _become(account)
            for path in files:
                path.open("rb").close()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def drop(account: Account | None) -> None:
    """Lose all capabilities, now and for all programs run from here; become ``account`` if one is given.

    Before any thread is started: capabilities are a thread's own. Raises NoRights.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        for number in range(_MOST_CAPABILITIES):
            libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)  # EINVAL beyond what the kernel knows
        libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
        if account is not None:
            _become(account)
        header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
        none = (ctypes.c_uint32 * 6)()
        if libc.capset(header, none) or libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    except OSError as error:
        raise NoRights(f"cannot give up rights: {error.strerror}", remedy="run it as another user") from error


def _become(account: Account) -> None:
    os.setgroups([])
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)
