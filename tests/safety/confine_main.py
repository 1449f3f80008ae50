"""``confine_main.py SETTINGS COMMAND…``: run a command under a unit's system call filter, as systemd does."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
from typing import Any

import seccomp

_PROT_WRITE, _PROT_EXEC = 2, 4
_SHM_EXEC = 0o100000


def main() -> None:
    """Load the filters and execute the command."""
    settings = json.loads(sys.argv[1])
    # By default, libseccomp makes system calls of other architectures fatal.
    narrower = seccomp.SyscallFilter(defaction=seccomp.ALLOW)
    _only_families(narrower, [getattr(socket, name) for name in settings["families"]])
    if settings["no_new_code"]:
        _no_new_code(narrower)
    narrower.load()
    listed = seccomp.SyscallFilter(defaction=seccomp.ERRNO(getattr(errno, settings["error"])))
    for name in settings["allowed"]:
        if seccomp.resolve_syscall(seccomp.Arch(), name) >= 0:  # some exist only on other architectures
            listed.add_rule(seccomp.ALLOW, name)
    listed.load()
    os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606


def _only_families(rules: Any, families: list[int]) -> None:
    action = seccomp.ERRNO(errno.EAFNOSUPPORT)
    rules.add_rule(action, "socket", seccomp.Arg(0, seccomp.LT, min(families)))
    rules.add_rule(action, "socket", seccomp.Arg(0, seccomp.GT, max(families)))
    for between in set(range(min(families), max(families))) - set(families):
        rules.add_rule(action, "socket", seccomp.Arg(0, seccomp.EQ, between))


def _no_new_code(rules: Any) -> None:
    action = seccomp.ERRNO(errno.EPERM)
    both = _PROT_WRITE | _PROT_EXEC
    rules.add_rule(action, "mmap", seccomp.Arg(2, seccomp.MASKED_EQ, both, both))
    for name in ("mprotect", "pkey_mprotect"):
        rules.add_rule(action, name, seccomp.Arg(2, seccomp.MASKED_EQ, _PROT_EXEC, _PROT_EXEC))
    rules.add_rule(action, "shmat", seccomp.Arg(2, seccomp.MASKED_EQ, _SHM_EXEC, _SHM_EXEC))


if __name__ == "__main__":
    main()
