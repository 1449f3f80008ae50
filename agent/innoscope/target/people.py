"""Who runs a process: its user, and who logged in before becoming that user."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from innoscope.target.proc import ProcFs

_NOBODY_LOGGED_IN: Final = 0xFFFFFFFF  # what /proc/PID/loginuid says of daemons


def name_of(uid: int) -> str:
    """The user's name; ``uid 1234`` without an entry in the password database."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def login_of(proc: ProcFs, pid: int) -> str | None:
    """Who logged in, whatever sudo or su made of them since. /proc/PID/loginuid; None for daemons."""
    try:
        uid = int(Path(proc.path(pid, "loginuid")).read_text())
    except (OSError, ValueError):  # a kernel without audit has no such file
        return None
    return None if uid == _NOBODY_LOGGED_IN else name_of(uid)


def owner_of(proc: ProcFs, pid: int) -> str:
    """``root``, or ``root (alice)`` when alice logged in and became root. Raises ProcessLookupError."""
    user = name_of(int(proc.status(pid)["Uid"].split()[1]))
    login = login_of(proc, pid)
    return f"{user} ({login})" if login not in (None, user) else user


def ourselves(proc: ProcFs) -> str:
    """Who types this command, in the same words. Where the kernel does not know, sudo's word is taken."""
    owner = owner_of(proc, os.getpid())
    invoker = os.environ.get("SUDO_USER")
    return f"{owner} ({invoker})" if "(" not in owner and invoker not in (None, owner) else owner
