"""Read the types of variables from a file's debug information with gdb, which attaches to no process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from innoscope import _native

if TYPE_CHECKING:
    from collections.abc import Sequence

    from innoscope._native import Member


#: Timeout in seconds, enough for 300 MB of debug information on a busy host. An idle host needs 4 s.
_TIMEOUT_S: Final = 120
#: Options that keep gdb from reading init files and from loading scripts.
OPTIONS: Final = (
    "-nx", "-batch", "-iex", "set auto-load off", "-iex", "set auto-load safe-path /nonexistent",
)  # fmt: skip
#: Without DEBUGINFOD_URLS, gdb does not use the network.
ENVIRONMENT: Final = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "HOME": "/nonexistent"}

_SAID: Final = re.compile(r"\$\d+ = (\d+)\n\$\d+ = 0x([0-9a-f]+)\ntype = (.+)")
_WORDS: Final = re.compile(r"\b(?:const|volatile)\b")
#: Kinds, keyed by C type name as printed by ptype. A plain char may be signed or unsigned.
_KINDS: Final = {
    "bool": "unsigned",
    "float": "float",
    "double": "float",
    "char": "char",
    "signed char": "signed",
    "unsigned char": "unsigned",
} | {
    prefix + integer: kind
    for integer in ("short", "int", "long", "long long")
    for prefix, kind in (("", "signed"), ("unsigned ", "unsigned"))
}


@dataclass(frozen=True, slots=True)
class Described:
    """A variable: its ELF virtual address, size in bytes, and kind.

    The kind is unsigned, signed, float, char (a byte whose signedness C does not define), or other (not a
    number).
    """

    address: int
    size: int
    kind: str
    text: str  # the type in C


def without_gdb(member: Member, address: int) -> Described:
    """Describe the variable at ``address``, given the member that the Rust core found in the DWARF."""
    whole = member.offsets == (0,) and member.count == 1
    kind = "char" if (member.kind, member.size) == ("signed", 1) else member.kind
    kind = kind if whole else "other"
    return Described(address, member.size, kind, kind)


def describe(file: str, names: Sequence[str], gdb: str = "gdb") -> dict[str, Described] | None:
    """Describe the variables, using the debug information of ``file``. Omit unknown variables.

    Return None if gdb is missing, fails or times out. gdb takes seconds and 450 MB for a server with 300 MB
    of debug information. It runs in a sandboxed, low-priority child process that can read only world-readable
    files (``confined_gdb``).
    """
    try:
        opened = _native.open_regular(file)
    except OSError:
        return None
    try:
        return _describe(opened, names, gdb)
    finally:
        os.close(opened)


def _describe(opened: int, names: Sequence[str], gdb: str) -> dict[str, Described] | None:
    command = [sys.executable, "-P", "-m", "innoscope.toggles.backends.confined_gdb", gdb, *OPTIONS]
    command += ["-iex", "set confirm off", "-iex", "set pagination off"]
    path = {name: value for name, value in os.environ.items() if name == "PYTHONPATH"}
    for name in names:
        for question in (
            f"echo \\n=={name}\\n", f"p/d sizeof({name})", f"p/x (unsigned long)&{name}", f"ptype {name}",
        ):  # fmt: skip
            command += ["-ex", question]
    try:
        result = subprocess.run(
            [*command, f"/proc/self/fd/{opened}"],
            pass_fds=[opened],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
            env=ENVIRONMENT | path,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse(result.stdout) if result.returncode == 0 or "==" in result.stdout else None


def parse(said: str) -> dict[str, Described]:
    """Parse gdb's output, in which each variable's description follows a line ``==NAME``."""
    found = {}
    for block in said.split("\n==")[1:]:
        name, _, rest = block.partition("\n")
        if answer := _SAID.match(rest):
            size, address, text = answer.groups()
            found[name.strip()] = Described(int(address, 16), int(size), kind_of(text), text.strip())
    return found


def kind_of(text: str) -> str:
    """Return the kind of a type from ptype: ``volatile unsigned long`` is unsigned, ``struct …`` is other."""
    plain = " ".join(_WORDS.sub(" ", text).split())
    if plain.startswith("enum ") and not plain.endswith(("*", "]")):
        return "unsigned"
    return _KINDS.get(plain, "other")
