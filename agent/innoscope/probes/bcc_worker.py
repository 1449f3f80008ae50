"""The child of ``compiling``: ``python -m innoscope.probes.bcc_worker``, the order on standard input.

The answer on standard output is what ``Compiled.pack`` makes. Where there is none, the last line of standard
error is the reason, in JSON.
"""

from __future__ import annotations

import errno
import json
import os
import re
import struct
import sys
from pathlib import Path
from typing import Any, Final

from innoscope.probes.object_file import Compiled, Shape

#: struct bpf_insn (linux/bpf.h): opcode, two registers of 4 bits, offset, constant.
_INSTRUCTION: Final = struct.Struct("=BBhi")
#: BPF_LD | BPF_IMM | BPF_DW with BPF_PSEUDO_MAP_FD: the constant is a map's descriptor.
_LOAD_CONSTANT: Final = 0x18
_MAP_DESCRIPTOR: Final = 1


def main() -> int:
    """Compile; what went wrong is told as the last line of standard error."""
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # LLVM may print
    order = json.load(sys.stdin)
    try:
        import bcc  # here, since it comes from the distribution and may be missing
    except ImportError as error:
        return _failed(str(error), "missing")
    try:
        made = bcc.BPF(text=order["text"], cflags=["-Wno-macro-redefined"])
        compiled = _collect(made, order["programs"], order["maps"])
    except Exception as error:
        return _failed(str(error), _kind(error))
    with answer:
        answer.write(compiled.pack())
    return 0


def _collect(made: Any, programs: list[str], maps: list[str]) -> Compiled:
    """The code, in which bcc put the descriptors of maps that it made: they become indexes."""
    descriptors = {made[name].map_fd: name for name in maps}
    code = {name: made.dump_func(name.encode()) for name in programs}
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


def _shape(descriptor: int, name: str) -> Shape:
    told = dict(re.findall(r"^(\w+):\s*(\w+)$", Path(f"/proc/self/fdinfo/{descriptor}").read_text(), re.M))
    words = ("map_type", "key_size", "value_size", "max_entries", "map_flags")
    return Shape(name, *(int(told[word], 0) for word in words))


def _failed(words: str, kind: str) -> int:
    print(json.dumps({"error": words, "kind": kind}), file=sys.stderr)
    return 1


def _kind(error: Any) -> str:
    text = str(error)
    if getattr(error, "errno", None) in (errno.EPERM, errno.EACCES) or "Operation not permitted" in text:
        return "rights"
    return "failed"


if __name__ == "__main__":
    sys.exit(main())
