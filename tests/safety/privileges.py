"""Build command prefixes that remove privileges or replace files."""

from __future__ import annotations

import sys
from pathlib import Path

import click

import innoscope

NOBODY = 65534
_PACKAGES = Path(innoscope.__file__).parents[1]
_SITE = Path(click.__file__).parents[1]


def without(*capabilities: str) -> list[str]:
    """Return a command prefix that removes the given capabilities from root."""
    less = ",".join(f"-{name}" for name in capabilities)
    return ["setpriv", "--bounding-set", less, "--inh-caps", less]


def without_bpf() -> list[str]:
    """Return a command prefix that denies BPF to root, as some hosts do."""
    return without("bpf", "perfmon", "sys_admin")


def denying(*calls: str) -> list[str]:
    """Return a command prefix that makes the given system calls fail with EPERM."""
    return ["/usr/bin/python3", str(Path(__file__).with_name("denying_main.py")), ",".join(calls)]


def without_stacks() -> list[str]:
    """Return a command prefix that denies every method of copying stacks except ptrace."""
    return denying("bpf", "process_vm_readv")


def nobody(*arguments: object) -> list[str]:
    """Return a command line that runs innoscope as nobody."""
    return as_user(NOBODY, *arguments)


def as_user(uid: int, *arguments: object) -> list[str]:
    """Return a command line that runs innoscope as another user, without capabilities.

    The user may have no access to the source tree, so the packages are mounted elsewhere.
    """
    places = {"/mnt/agent": _PACKAGES, "/mnt/site": _SITE}
    steps = ["mount -t tmpfs -o mode=755 tmpfs /mnt", f"mkdir {' '.join(places)}"]
    steps += [f"mount --bind '{real}' {place}" for place, real in places.items()]
    steps += ["mkdir /mnt/probes", f"mount --bind '{_PACKAGES.parent}/probes' /mnt/probes"]  # catalogs
    drop = f"setpriv --reuid={uid} --regid={uid} --clear-groups --bounding-set=-all --inh-caps=-all"
    steps += ["cd /", f'exec env PYTHONPATH={":".join(places)} {drop} "$@"']
    python = str(Path(sys.executable).resolve())
    command = [python, "-B", "-m", "innoscope.cli.main", *map(str, arguments)]
    return ["unshare", "--mount", "sh", "-c", " && ".join(steps), "sh", *command]


def seeing(real: Path, place: str) -> list[str]:
    """Return a command prefix that mounts the directory ``real`` at ``place``."""
    script = f"mkdir -p {place} && mount --bind '{real}' {place} && exec \"$@\""
    return ["unshare", "--mount", "sh", "-c", script, "sh"]
