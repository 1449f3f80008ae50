"""Deny system calls with EPERM, then run a command: ``python3 denying_main.py CALL,CALL COMMAND …``."""

from __future__ import annotations

import errno
import os
import sys

import seccomp


def main() -> None:
    """Load the filter and replace this process with the command."""
    rules = seccomp.SyscallFilter(defaction=seccomp.ALLOW)
    for name in sys.argv[1].split(","):
        rules.add_rule(seccomp.ERRNO(errno.EPERM), name)
    rules.load()
    os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606


if __name__ == "__main__":
    main()
