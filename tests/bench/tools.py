"""Define the tools that Innoscope is compared with."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bench import percona
from servers import ensure_packages

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: Environment variables that keep the tools from downloading debug files.
_QUIET = {"DEBUGINFOD_URLS": "", "LC_ALL": "C.UTF-8"}


@dataclass(frozen=True, slots=True)
class Tool:
    """A command that prints all stacks of a process, whose id replaces ``{pid}`` in ``command``."""

    name: str
    command: tuple[str, ...]
    threads: Callable[[str], int]  #: parses the number of threads in the tool's output
    environment: Mapping[str, str] = field(default_factory=lambda: _QUIET)

    def on(self, pid: int) -> list[str]:
        """Return the command line for the process with this pid."""
        return [word.replace("{pid}", str(pid)) for word in self.command]


def _lines(pattern: str) -> Callable[[str], int]:
    return lambda text: len(re.findall(pattern, text, re.MULTILINE))


def _sum_of_counts(text: str) -> int:
    """Return the sum of the counts that precede the stacks in aggregated output."""
    return sum(int(count) for count in re.findall(r"^\s*(\d+) [^\s-]", text, re.MULTILINE))


def _headline(text: str) -> int:
    """Parse Innoscope's first line: ``1,021 threads in …``."""
    found = re.match(r"([\d,]+) threads?\b", text)
    return int(found[1].replace(",", "")) if found else 0


def ours() -> Tool:
    """Return ``innoscope stacks`` as a DBA would type it."""
    innoscope = str(Path(sys.executable).with_name("innoscope"))
    return Tool("innoscope stacks", (innoscope, "stacks", "--pid", "{pid}"), _headline)


def others() -> list[Tool]:
    """Return gdb, pt-pmp and eu-stack; install them if they are missing.

    pt-pmp is returned once for each of its dumpers gdb and pteu, or only with gdb if pt-pmp 3.7.1 cannot be
    downloaded.
    """
    ensure_packages(["gdb", "elfutils", "percona-toolkit"])
    gdb = ("gdb", "-nx", "-batch", "-ex", "set pagination 0", "-ex", "thread apply all bt", "-p", "{pid}")
    tools = [Tool("gdb", gdb, _lines(r"^Thread \d+ "))]
    try:
        tools += _pt_pmp(percona.home())
    except (subprocess.SubprocessError, OSError) as error:
        print(f"bench: no pt-pmp with the pteu dumper: {error}", file=sys.stderr)
        tools.append(Tool("pt-pmp", ("/usr/bin/pt-pmp", "--pid", "{pid}"), _sum_of_counts))
    tools.append(Tool("eu-stack", ("eu-stack", "-p", "{pid}"), _lines(r"^TID \d+:")))
    return tools


def _pt_pmp(home: Path) -> list[Tool]:
    program = str(home / "usr/bin/pt-pmp")
    environment = {
        **_QUIET,
        "PATH": f"{home}/usr/bin:{os.environ['PATH']}",
        "PERL5LIB": f"{home}/usr/share/perl5",
    }
    return [
        Tool("pt-pmp", (program, "--dumper", "gdb", "--pid", "{pid}"), _sum_of_counts, environment),
        Tool("pt-pmp-pteu", (program, "--dumper", "pteu", "--pid", "{pid}"), _sum_of_counts, environment),
    ]
