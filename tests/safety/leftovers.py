"""BPF programs of ours that nobody holds any more and that the kernel still has."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path

from servers import ensure_packages

#: The name that probes/snapshot/snapshot.bpf.c gives its program.
PROGRAM = "snapshot"
_HELD = re.compile(r"^prog_id:\s*(\d+)$", re.MULTILINE)
_PATIENCE_S = 20  # the kernel frees a program in the background


def orphans() -> set[int]:
    """Ids of our programs that outlived their process; several innoscopes may be at work on this machine."""
    deadline = time.monotonic() + _PATIENCE_S
    while left := _loaded() - _held():
        if time.monotonic() > deadline:
            return left
        time.sleep(0.1)
    return set()


def _loaded() -> set[int]:
    ensure_packages(["bpftool"])
    shown = subprocess.run(["bpftool", "--json", "prog", "show"], capture_output=True, text=True, check=True)
    return {program["id"] for program in json.loads(shown.stdout) if program.get("name") == PROGRAM}


def _held() -> set[int]:
    """Program ids of all descriptors of programs, links and iterators on this machine."""
    held = set()
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if "bpf" in str(descriptor.readlink()):
                text = (descriptor.parents[1] / "fdinfo" / descriptor.name).read_text()
                held |= set(map(int, _HELD.findall(text)))
        except OSError:  # closed in the meantime
            continue
    return held
