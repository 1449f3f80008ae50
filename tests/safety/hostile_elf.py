"""Build ELF files and programs that waste the reader's time or memory."""

from __future__ import annotations

import lzma
import struct
import subprocess
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

PROGBITS, SYMTAB, STRTAB, RELA, NOTE, DYNSYM = 1, 2, 3, 4, 7, 11
ALLOC, CODE, COMPRESSED = 2, 4, 0x800
MIB: Final = 1 << 20


@dataclass
class Section:
    """A section. ``size`` overrides the size in the header, and ``link`` is another section's index."""

    name: bytes
    kind: int
    data: bytes = b""
    flags: int = 0
    link: int = 0
    entry_size: int = 0
    size: int | None = None
    address: int = 0


def elf(sections: Sequence[Section], *, names: bytes | None = None, count: int | None = None) -> bytes:
    """Build a 64-bit ELF file. Section 0 is empty, section 1 contains the names, ``sections`` start at 2.

    Its only segment is executable and contains the first 8 MiB, so that a process can map the file as code.
    """
    table = b"\0.shstrtab\0" + b"".join(one.name + b"\0" for one in sections)
    table = table if names is None else names
    everything = [Section(b".shstrtab", STRTAB, table), *sections]
    body, headers = bytearray(64 + 56), [bytes(64)]
    for one in everything:
        body += bytes(-len(body) % 8)
        size = len(one.data) if one.size is None else one.size
        name = table.find(b"\0" + one.name + b"\0") + 1
        where = (one.flags, one.address, len(body), size)
        headers.append(struct.pack("<IIQQQQIIQQ", name, one.kind, *where, one.link, 0, 1, one.entry_size))
        body += one.data
    body += bytes(-len(body) % 8)
    number = count if count is not None else len(headers)
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, 0, 64, len(body), 0, 64, 56, 1, 64, number, 1)
    body[: 64 + 56] = head + struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, 8 * MIB, 8 * MIB, 4096)
    if count is not None:
        headers += [headers[-1]] * (count - len(headers))
    return bytes(body) + b"".join(headers)


def symbols(entries: Iterable[tuple[int, int, int]], strings: bytes) -> list[Section]:
    """Build a symbol table of functions (name, address, size) and its strings, as sections 2 and 3."""
    table = struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)
    table += b"".join(struct.pack("<IBBHQQ", name, 0x12, 0, 1, at, size) for name, at, size in entries)
    return [Section(b".symtab", SYMTAB, table, link=3, entry_size=24), Section(b".strtab", STRTAB, strings)]


def deflated(size: int) -> bytes:
    """Return ``size`` zero bytes in compressed form (zlib)."""
    packer = zlib.compressobj(9)
    return b"".join(packer.compress(bytes(MIB)) for _ in range(size // MIB)) + packer.flush()


def compressed(name: bytes, size: int, claimed: int | None = None) -> Section:
    """Build a section of zeros that unpacks to ``size`` bytes; its header may claim another size."""
    head = struct.pack("<IIQQ", 1, 0, size if claimed is None else claimed, 1)
    return Section(name, PROGBITS, head + deflated(size), COMPRESSED)


def bomb() -> bytes:
    """Build a file with a section of 1 MB that unpacks to 1 GiB. Server discovery reads this section."""
    return elf([compressed(b".gnu_debuglink", 1024 * MIB)])


def liar() -> bytes:
    """Build a file with a section that unpacks to 64 MiB, although its header claims 100 bytes."""
    return elf([compressed(b".gnu_debuglink", 64 * MIB, 100)])


def debug_info_bomb() -> bytes:
    """Build a file whose debug information unpacks to 1 GiB. Only the confined child process unpacks it."""
    return elf([compressed(b".debug_info", 1024 * MIB)])


def one_long_name() -> bytes:
    """Build a file with 200,000 symbols that share one name of 1 MiB."""
    return elf(symbols(((1, 0x1000, 8) for _ in range(200_000)), b"\0server_version_" + b"x" * MIB + b"\0"))


def versioned_name() -> bytes:
    """Build a file with a million symbols that Innoscope looks up, each with a version name of 4 KB."""
    name = b"\0server_version@" + b"v" * 4000 + b"\0"
    return elf(symbols(((1, 0x1000, 8) for _ in range(1_000_000)), name))


def too_many_symbols() -> bytes:
    """Build a file with twice as many symbols as the limit."""
    return elf(symbols(((1, at, 8) for at in range(2 << 20)), b"\0f\0"))


def nested_functions() -> bytes:
    """Build a file with a million nested functions that share one long name."""
    entries = ((1, 0x1000 + at, 4_000_000 - 2 * at) for at in range(1_000_000))
    return elf(symbols(entries, b"\0f" + b"x" * 4000 + b"\0"))


def many_sections() -> bytes:
    """Build a file with 65,000 sections that share a name of 1 MiB."""
    return elf([Section(b"n" * MIB, PROGBITS)], count=65_000)


def debugdata_bomb() -> bytes:
    """Build a file with 100 KB of .gnu_debugdata that unpack to 512 MiB."""
    packer = lzma.LZMACompressor(check=lzma.CHECK_CRC32, preset=0)
    packed = b"".join(packer.compress(bytes(MIB)) for _ in range(512)) + packer.flush()
    return elf([Section(b".gnu_debugdata", PROGBITS, packed)])


def many_notes() -> bytes:
    """Build a file with 1,000 sections that share the same 60 KiB of empty notes."""
    return elf([Section(b".note", NOTE, bytes(60 << 10))], count=1_000)


def endless_relocations() -> bytes:
    """Build a file with 900 relocation tables that share the same 12 MB."""
    table = struct.pack("<QQq", 0, 1 << 32, 0) * (500 << 10)
    dynamic = symbols([(1, 0x1000, 8)], b"\0f\0")
    dynamic[0].kind = DYNSYM
    return elf([*dynamic, Section(b".rela.dyn", RELA, table, ALLOC)], count=900)


def debug_information(abbreviations: bytes, units: Iterable[bytes]) -> list[Section]:
    """Build DWARF 5 sections from units, each given as the bytes of its entries.

    A table of indexed strings forces the reader to read every unit.
    """
    information = bytearray()
    for entries in units:
        information += struct.pack("<IHBBI", 8 + len(entries), 5, 1, 8, 0) + entries
    return [
        Section(b".debug_abbrev", PROGBITS, abbreviations),
        Section(b".debug_str_offsets", PROGBITS, bytes(8)),
        Section(b".debug_info", PROGBITS, bytes(information)),
    ]


#: Abbreviations for a unit, a function without attributes, and a namespace.
_ABBREVIATIONS: Final = bytes([1, 0x11, 1, 0, 0, 2, 0x2E, 0, 0, 0, 3, 0x39, 1, 0, 0, 0])


def nested_namespaces(depth: int = 4_000, functions: int = 200_000) -> bytes:
    """Build a file with ``functions`` functions in the innermost of ``depth`` nested namespaces."""
    entries = b"\x01" + b"\x03" * depth + b"\x02" * functions + bytes(depth + 1)
    return elf(debug_information(_ABBREVIATIONS, [entries]))


def deeper_namespaces() -> bytes:
    """Build a file with a million nested namespaces."""
    return nested_namespaces(1_000_000, 1)


def branching_types() -> list[Section]:
    """Build DWARF for `log_sys`, whose type has two anonymous members, each with two more, 40 levels deep."""
    abbreviations = bytes([1, 0x11, 1, 0, 0])
    abbreviations += bytes([2, 0x34, 0, 0x03, 0x08, 0x49, 0x13, 0, 0])  # a variable: name, type
    abbreviations += bytes([3, 0x13, 1, 0x0B, 0x0B, 0, 0])  # a structure: size
    abbreviations += bytes([4, 0x0D, 0, 0x49, 0x13, 0, 0, 0])  # a member: type
    variable = b"\x02log_sys\0"
    first, each = 12 + 1 + len(variable) + 4, 2 + 2 * 5 + 1
    entries = b"\x01" + variable + struct.pack("<I", first)
    for level in range(40):
        entries += b"\x03\x08" + 2 * (b"\x04" + struct.pack("<I", first + (level + 1) * each)) + b"\0"
    return debug_information(abbreviations, [entries + b"\x03\x08\0\0"])


def large_tables() -> bytes:
    """Build a file that claims 44 MiB of symbols and names beyond its end."""
    tables = symbols([], b"")
    tables[0].size, tables[1].size = 24 * MIB, 20 * MIB
    return elf(tables)


def shared_abbreviations() -> bytes:
    """Build a file with 4,000 units that share 16,000 abbreviations."""
    many = b"".join(bytes([0x80 | one & 0x7F, one >> 7, 0x2E, 0, 0, 0]) for one in range(128, 16_000))
    return elf(debug_information(_ABBREVIATIONS[:-1] + many + b"\0", [b"\x01\0"] * 4_000))


#: Builder of each hostile file, and the error after the file's path; None if there is no error.
FILES: Final[dict[str, tuple[Callable[[], bytes], str | None]]] = {
    # The section is not read.
    "bomb": (bomb, ".gnu_debuglink: it would unpack to 1073741824 bytes"),
    "debug_info_bomb": (debug_info_bomb, ".debug_info: it would unpack to 1073741824 bytes"),
    # All parts that are read are within the limits.
    "liar": (liar, None),
    "endless_relocations": (endless_relocations, None),
    "many_notes": (many_notes, None),
    "nested_namespaces": (nested_namespaces, None),
    "deeper_namespaces": (deeper_namespaces, None),
    "shared_abbreviations": (shared_abbreviations, None),
    # A symbol pack cannot be made from the file.
    "one_long_name": (one_long_name, "it has 0 symbols; a pack must have 1 to 1048576"),
    "versioned_name": (versioned_name, "the names of its symbols take more than 33554432 bytes"),
    "nested_functions": (nested_functions, "the names of its symbols take more than 33554432 bytes"),
    # Names are missing from the stacks of a process that maps the file.
    "too_many_symbols": (too_many_symbols, "it has more than 1048576 symbols"),
    "many_sections": (many_sections, "it has 65000 section headers, of which at most 1024 are read"),
    "debugdata_bomb": (debugdata_bomb, ".gnu_debugdata: it would unpack to 536870912 bytes"),
}

#: DWARF expressions that never end, for the call frame information of a sleeping function.
_SKIP_BACK: Final = (0x2F, 0xFD, 0xFF)  # DW_OP_skip -3, which jumps to itself
_PUSH_AND_SKIP_BACK: Final = (0x30, 0x2F, 0xFC, 0xFF)  # DW_OP_lit0, DW_OP_skip back to DW_OP_lit0
_BRANCH_BACK: Final = (0x31, 0x28, 0xFC, 0xFF)  # DW_OP_lit1, DW_OP_bra: jump back if not zero
_RETURN_ADDRESS: Final = 16


def _block(opcode: int, code: Sequence[int], *register: int) -> str:
    return ",".join(map(str, (opcode, *register, len(code), *code)))


FRAMES: Final[dict[str, str]] = {
    # DW_CFA_def_cfa_expression
    "loop": f".cfi_escape {_block(0x0F, _SKIP_BACK)}",
    "growing_loop": f".cfi_escape {_block(0x0F, _PUSH_AND_SKIP_BACK)}",
    "branching_loop": f".cfi_escape {_block(0x0F, _BRANCH_BACK)}",
    # DW_CFA_val_expression of the return address, and DW_CFA_expression of the frame pointer
    "return_address_loop": f".cfi_escape {_block(0x16, _SKIP_BACK, _RETURN_ADDRESS)}",
    "frame_pointer_loop": f".cfi_escape {_block(0x10, _SKIP_BACK, 6)}",
    # 3 MB of DW_CFA_remember_state and DW_CFA_restore_state
    "remembering": ".rept 1500000\n.cfi_escape 0x0a,0x0b\n.endr",
    "nops": ".cfi_escape 0\n.rept 4000000\n.cfi_escape 0\n.endr",
    # each frame unwinds to itself: the stack pointer does not change
    "standing_still": f".cfi_escape {_block(0x0F, (0x77, 0x00))}",
}

_ASSEMBLER: Final = """
    .text
    .globl spin
    .type spin,@function
spin:
    .cfi_startproc
    {frames}
1:  mov $35,%eax
    lea ts(%rip),%rdi
    xor %esi,%esi
    syscall
    jmp 1b
    .cfi_endproc
    .size spin,.-spin
    .data
ts: .quad 1000,0
    .section .note.GNU-stack,"",@progbits
"""


def compile_program(folder: Path, frames: str, name: str = "looper") -> Path:
    """Compile a program that sleeps in a function whose call frame information is ``frames``."""
    (folder / "spin.s").write_text(_ASSEMBLER.format(frames=frames))
    (folder / "main.c").write_text("void spin(void); int main(void){ spin(); return 0; }\n")
    program = folder / name
    subprocess.run(["gcc", "-o", program, folder / "main.c", folder / "spin.s"], check=True)
    return program


_RECURSION: Final = """
    #include <pthread.h>
    #include <semaphore.h>
    #include <stdint.h>
    #include <stdio.h>
    #include <time.h>
    #include <unistd.h>

    static sem_t arrived;

    __attribute__((noinline)) static int {name}(intptr_t depth) {{
        if (depth == 0) {{
            sem_post(&arrived);
            for (;;) pause();
        }}
        return {name}(depth - 1) + 1;
    }}

    static void *begin(void *depth) {{ {name}((intptr_t)depth); return 0; }}

    int main(void) {{
        sem_init(&arrived, 0, 0);
        for (intptr_t number = 0; number < {threads}; number++) {{
            pthread_t thread;
            pthread_create(&thread, 0, begin, (void *)(1000 - number));
        }}
        for (int number = 0; number < {threads}; number++) sem_wait(&arrived);
        for (;;) nanosleep(&(struct timespec){{1000, 0}}, 0);
    }}
"""


def compile_recursion(folder: Path, name: str, threads: int) -> Path:
    """Compile a program whose threads sleep about 1,000 calls deep in one function, at different depths."""
    source, program = folder / "recursion.c", folder / "recursion"
    source.write_text(_RECURSION.format(name=name, threads=threads))
    subprocess.run(["gcc", "-O0", "-pthread", "-o", program, source], check=True)
    return program
