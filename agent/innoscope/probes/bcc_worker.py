"""Compile BPF programs for ``build_cache``, which runs this module as a child process.

``python -m innoscope.probes.bcc_worker`` reads a JSON request from standard input. On success, it writes the
output of ``Compiled.pack`` to standard output. On failure, the last line of standard error is the reason in
JSON.
"""

from __future__ import annotations

import errno
import os
import re
import struct
import sys
from pathlib import Path
from typing import Any, Final

from innoscope.common.typed import decode_json, encode_json
from innoscope.probes.object_file import Compiled, CompileFailure, CompileRequest, MapShape

#: struct bpf_insn (linux/bpf.h): opcode, two 4-bit registers, offset, constant.
_INSTRUCTION: Final = struct.Struct("=BBhi")
#: BPF_LD | BPF_IMM | BPF_DW. With BPF_PSEUDO_MAP_FD, the constant is the descriptor of a map.
_LOAD_CONSTANT: Final = 0x18
_MAP_DESCRIPTOR: Final = 1
#: Pattern of the directories below /usr/lib in which distributions install bcc for their own Python. Other
#: Python versions can import it too, because it contains no extension modules.
_DISTRIBUTIONS: Final = "python3*/*-packages/bcc"


def main() -> int:
    """Compile the programs of the request. Return the exit code."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # LLVM may print to standard output
    request = decode_json(sys.stdin.buffer.read(), CompileRequest, "the request")
    sys.path += sorted(str(package.parent) for package in Path("/usr/lib").glob(_DISTRIBUTIONS))
    try:
        import bcc  # not at the top, because the distribution's package may be missing
    except ImportError as error:
        return _failed(str(error), "missing")
    try:
        module = bcc.BPF(text=request.text, cflags=["-Wno-macro-redefined"])
        compiled = _collect(module, request.programs, request.maps)
    except Exception as error:
        return _failed(str(error), _kind(error))
    with output:
        output.write(compiled.pack())
    return 0


def _collect(module: Any, programs: list[str], maps: list[str]) -> Compiled:
    """Return the compiled programs and maps, with map indexes in the code instead of descriptors."""
    descriptors = {module[name].map_fd: name for name in maps}
    code = {name: module.dump_func(name.encode()) for name in programs}
    for each in code.values():
        for descriptor in _maps_of(each):
            descriptors.setdefault(descriptor, f"map_{descriptor}")
    order = list(descriptors)
    return Compiled(
        {name: _with_indexes(each, order) for name, each in code.items()},
        tuple(_shape(descriptor, name) for descriptor, name in descriptors.items()),
    )


def _maps_of(code: bytes) -> list[int]:
    return [
        constant
        for opcode, registers, _, constant in _INSTRUCTION.iter_unpack(code)
        if opcode == _LOAD_CONSTANT and registers >> 4 == _MAP_DESCRIPTOR
    ]


def _with_indexes(code: bytes, order: list[int]) -> bytes:
    linked = bytearray()
    for opcode, registers, offset, constant in _INSTRUCTION.iter_unpack(code):
        is_map = opcode == _LOAD_CONSTANT and registers >> 4 == _MAP_DESCRIPTOR
        linked += _INSTRUCTION.pack(opcode, registers, offset, order.index(constant) if is_map else constant)
    return bytes(linked)


def _shape(descriptor: int, name: str) -> MapShape:
    text = Path(f"/proc/self/fdinfo/{descriptor}").read_text()
    fields = dict(re.findall(r"^(\w+):\s*(\w+)$", text, re.M))
    names = ("map_type", "key_size", "value_size", "max_entries", "map_flags")
    return MapShape(name, *(int(fields[field], 0) for field in names))


def _failed(message: str, kind: str) -> int:
    print(encode_json(CompileFailure(error=message, kind=kind)).decode(), file=sys.stderr)
    return 1


def _kind(error: Any) -> str:
    text = str(error)
    if getattr(error, "errno", None) in (errno.EPERM, errno.EACCES) or "Operation not permitted" in text:
        return "rights"
    return "failed"


if __name__ == "__main__":
    sys.exit(main())
