"""Find the user that a process runs as, and the user who originally logged in."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from innoscope.target.proc import ProcFs

_NO_LOGIN: Final = 0xFFFFFFFF  # /proc/PID/loginuid of daemons


def user_name(uid: int) -> str:
    """Return the user's name; ``uid 1234`` if the password database has no entry for the uid."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def login_user(proc: ProcFs, pid: int) -> str | None:
    """Return the user who logged in, regardless of sudo and su (/proc/PID/loginuid); None for daemons."""
    try:
        uid = int(Path(proc.path(pid, "loginuid")).read_text())
    except (OSError, ValueError):  # a kernel without audit has no such file
        return None
    return None if uid == _NO_LOGIN else user_name(uid)


def process_owner(proc: ProcFs, pid: int) -> str:
    """Return ``root``, or ``root (alice)`` if alice logged in and became root.

    Raise ProcessLookupError if the process has exited.
    """
    user = user_name(int(proc.status(pid)["Uid"].split()[1]))
    login = login_user(proc, pid)
    return f"{user} ({login})" if login not in (None, user) else user


def current_user(proc: ProcFs) -> str:
    """Return ``process_owner`` of this process, but use SUDO_USER if the login user is unknown."""
    owner = process_owner(proc, os.getpid())
    invoker = os.environ.get("SUDO_USER")
    return f"{owner} ({invoker})" if "(" not in owner and invoker not in (None, owner) else owner
