"""Drop privileges permanently, because a process with network access must not be privileged."""

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

#: Users to switch to, in order of preference: the package's user, then one that owns no files.
_USERS: Final = ("innoscope", "nobody")
# Constants from linux/prctl.h and linux/capability.h.
_PR_CAPBSET_DROP: Final = 24
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_CLEAR_ALL: Final = 4
_CAPABILITY_VERSION_3: Final = 0x20080522
_MAX_CAPABILITIES: Final = 64


@dataclass(frozen=True, slots=True)
class SystemAccount:
    """The operating-system account that the agent switches to."""

    name: str
    uid: int
    gid: int
    group: str


def unprivileged() -> SystemAccount:
    """Return the account to switch to from root. Raise NoRights if there is none."""
    for name in _USERS:
        try:
            entry = pwd.getpwnam(name)
            return SystemAccount(name, entry.pw_uid, entry.pw_gid, grp.getgrgid(entry.pw_gid).gr_name)
        except KeyError:
            continue
    raise NoRights(
        "cannot drop privileges: neither user innoscope nor user nobody exists",
        remedy="useradd --system innoscope",
    )


def readable_by(account: SystemAccount, files: Sequence[Path]) -> bool:
    """Return whether the account can read all files.

    The process temporarily switches to the account to open them. Call this before any thread is started.
    """
    groups, gid, uid = os.getgroups(), os.getegid(), os.geteuid()
    try:
        os.setgroups([])
        os.setegid(account.gid)
        os.seteuid(account.uid)  # clears the effective capabilities too
        for path in files:
            path.open("rb").close()
    except OSError:
        return False
    finally:
        os.seteuid(uid)
        os.setegid(gid)
        os.setgroups(groups)
    return True


def drop(account: SystemAccount | None) -> None:
    """Drop all capabilities, and prevent programs started later from gaining any.

    Switch to ``account`` if given.

    Call this before any thread is started, because capabilities are per thread. Raise NoRights on failure.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        for number in range(_MAX_CAPABILITIES):
            libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)  # EINVAL for capabilities that the kernel lacks
        libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
        if account is not None:
            _switch_to(account)
        header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
        none = (ctypes.c_uint32 * 6)()
        if libc.capset(header, none) or libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    except OSError as error:
        raise NoRights(
            f"cannot drop privileges: {error.strerror}", remedy="run the agent as another user"
        ) from error


def _switch_to(account: SystemAccount) -> None:
    os.setgroups([])
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)
