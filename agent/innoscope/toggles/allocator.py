"""Which memory allocator a server runs on, and what a call of it needs: the function, and the way back."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from innoscope import _native
from innoscope.target.native_errors import gone, no_rights, reading_files, translating
from innoscope.toggles.model import NotOnThisServer, Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from innoscope.target.model import Target

#: Beginnings of a mapped library's name, in the order in which they win: the others replace the C library's.
_LIBRARIES: Final = (("tcmalloc", ("libtcmalloc",)), ("jemalloc", ("libjemalloc",)))
_C_LIBRARY: Final = ("libc.so", "libc-2")
#: What a server that brings its allocator within itself exports.
_WITHIN: Final = {"tcmalloc": "MallocExtension_ReleaseFreeMemory", "jemalloc": "mallctl"}
#: mov $15,%rax; syscall: rt_sigreturn, in every C library, to which signal handlers return.
_RESTORER: Final = bytes.fromhex("48c7c00f0000000f05")
_CALL: Final = re.compile(r"(?:\(\s*[a-z_ ]+\s*\)\s*)?(\w+)\s*\((.*)\)\s*;?", re.DOTALL)
_ARGUMENT: Final = re.compile(
    r'\s*(?:\([a-z_ ]+\)\s*)?(?:(?P<number>-?(?:0x[0-9a-fA-F]+|\d+))|(?P<null>NULL)|"(?P<text>[^"\\]*)")\s*'
)


@dataclass(frozen=True, slots=True)
class Allocator:
    """``name`` is glibc, tcmalloc or jemalloc; ``module`` how its file's name begins, None: the server."""

    name: str
    module: str | None


@dataclass(frozen=True, slots=True)
class Call:
    """A function of the process, its arguments, and the code to which it returns (``restorer``)."""

    function: int
    arguments: tuple[int | str, ...]
    restorer: int
    origin: str


def detect(target: Target) -> Allocator:
    """The allocator of a running server. Raises NotOnThisServer for one that is not known."""
    names = {path.rpartition("/")[2] for path, _, _ in _code(target)}
    for allocator, beginnings in _LIBRARIES:
        for beginning in beginnings:
            if any(name.startswith(beginning) for name in names):
                return Allocator(allocator, beginning)
    for allocator, function in _WITHIN.items():
        if _functions(target, None, function):
            return Allocator(allocator, None)
    if _functions(target, None, "malloc"):
        raise NotOnThisServer(
            f"process {target.pid} has a malloc of its own, of a kind that is not known",
            remedy="release memory by a restart of the server",
        )
    for beginning in _C_LIBRARY:
        if any(name.startswith(beginning) for name in names):
            return Allocator("glibc", beginning)
    raise NotOnThisServer(
        f"process {target.pid} runs on none of glibc, tcmalloc and jemalloc",
        remedy="release memory by a restart of the server",
    )


def resolve(target: Target, allocator: Allocator, expression: str) -> Call:
    """What to call for an expression of the catalog. Raises Refused."""
    name, arguments = parse(expression)
    found = _functions(target, allocator.module, name)
    if len(found) != 1:
        times = f"{len(found)} times" if found else "not"
        raise Refused(
            f"{name} is {times} in {allocator.module or 'the server'} of process {target.pid}",
            remedy="report this server's allocator to Innoscope",
        )
    return Call(found.pop(), arguments, _restorer(target), f"{allocator.name}: {name}")


def parse(expression: str) -> tuple[str, tuple[int | str, ...]]:
    """``malloc_trim(0)`` → ``("malloc_trim", (0,))``. Numbers, NULL and plain strings; Refused otherwise."""
    match = _CALL.fullmatch(expression.strip())
    arguments: list[int | str] = []
    rest = match[2] if match else ""
    while rest.strip():
        argument = _ARGUMENT.match(rest)
        if argument is None or len(arguments) == 6:
            match = None
            break
        text = argument["text"]
        arguments.append(text if text is not None else int(argument["number"] or "0", 0))
        rest = rest[argument.end() :]
        if rest and not rest.startswith(","):
            match = None
            break
        rest = rest[1:]
    if match is None:
        raise Refused(
            f"{expression!r} is not a call of a function with numbers and strings", remedy="mend the catalog"
        )
    return match[1], tuple(arguments)


def _functions(target: Target, library: str | None, name: str) -> set[int]:
    """Addresses in the process of the functions with this very name."""
    with reading_files(target.pid):
        file = _native.CodeFile(target.pid, library)
        return {file.bias + address for found, address, *_ in file.functions([name]) if found == name}


def _restorer(target: Target) -> int:
    for path, start, end in _code(target):
        if path.rpartition("/")[2].startswith(_C_LIBRARY):
            with translating(target.pid):
                at = _native.read_memory(target.pid, start, end - start).find(_RESTORER)
            if at >= 0:
                return start + at
    raise Refused(
        f"process {target.pid} has no C library that signal handlers return to",
        remedy="release memory by a restart of the server",
    )


def _code(target: Target) -> Sequence[tuple[str, int, int]]:
    """(path, start, end) of each mapping of a file with code."""
    try:
        lines = Path(f"/proc/{target.pid}/maps").read_text(errors="replace").splitlines()
    except PermissionError as error:
        raise no_rights(target.pid, error.strerror or "") from error
    except OSError as error:
        raise gone(target.pid) from error
    found = []
    for line in lines:
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and "x" in fields[1] and fields[5].startswith("/"):
            start, _, end = fields[0].partition("-")
            found.append((fields[5].removesuffix(" (deleted)"), int(start, 16), int(end, 16)))
    return found
