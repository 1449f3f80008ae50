"""Commands to run the command line under, so that it has less than root has, or sees other files."""

from __future__ import annotations

import sys
from pathlib import Path

import click

import innoscope

NOBODY = 65534
_PACKAGES = Path(innoscope.__file__).parents[1]
_SITE = Path(click.__file__).parents[1]


def without(*capabilities: str) -> list[str]:
    """As root, but without these capabilities."""
    less = ",".join(f"-{name}" for name in capabilities)
    return ["setpriv", "--bounding-set", less, "--inh-caps", less]


def without_bpf() -> list[str]:
    """As root on a host that grants no BPF."""
    return without("bpf", "perfmon", "sys_admin")


def nobody(*arguments: object) -> list[str]:
    """The whole command line as a user without any right, who may not even be let into our tree.

    So the packages are shown to it in another place: mounts that only this process has.
    """
    places = {"/mnt/agent": _PACKAGES, "/mnt/site": _SITE}
    steps = ["mount -t tmpfs -o mode=755 tmpfs /mnt", f"mkdir {' '.join(places)}"]
    steps += [f"mount --bind '{real}' {place}" for place, real in places.items()]
    steps += ["mkdir /mnt/probes", f"mount --bind '{_PACKAGES.parent}/probes' /mnt/probes"]  # the catalogs
    drop = f"setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups --bounding-set=-all --inh-caps=-all"
    steps += ["cd /", f'exec env PYTHONPATH={":".join(places)} {drop} "$@"']
    python = str(Path(sys.executable).resolve())
    command = [python, "-B", "-m", "innoscope.cli.main", *map(str, arguments)]
    return ["unshare", "--mount", "sh", "-c", " && ".join(steps), "sh", *command]


def seeing(real: Path, place: str) -> list[str]:
    """With the folder ``real`` instead of what is at ``place``."""
    script = f"mkdir -p {place} && mount --bind '{real}' {place} && exec \"$@\""
    return ["unshare", "--mount", "sh", "-c", script, "sh"]
