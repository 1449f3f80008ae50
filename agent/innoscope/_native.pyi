"""The Rust core (agent/native): copies, unwinds and names the stacks of a live process.

Every call releases the GIL while it works. Addresses are virtual addresses of the looked-at process unless
said otherwise; times are nanoseconds; sizes are bytes. Failures of the operating system are raised as
``OSError`` with errno set; everything else as ``NativeError``, whose ``args`` are ``(kind, detail)``.
"""

from collections.abc import Mapping, Sequence
from typing import final

class NativeError(Exception):
    """``args = (kind, detail)``. Kinds: ``gone`` (the process ended), ``rights`` (EPERM or EACCES from the
    kernel), ``traced`` (another debugger has it), ``bpf`` (this kernel cannot run the snapshot program),
    ``elf`` (not a usable ELF file), ``arch`` (another CPU architecture), ``internal``; ``pack`` (a refused
    symbol pack: the third of ``args`` is the remedy or None)."""

#: ``(function, module, offset, inlined, kernel)``; function is None where no symbol covers the address,
#: module is the file's base name, offset is the address within the module (ELF virtual address).
RawFrame = tuple[str | None, str, int, bool, bool]

#: ``(tid, ns_tid, comm, state, trust, stack_id, syscall, arg0)``: ns_tid is the id inside the process's own
#: pid namespace; state is the letter of /proc/PID/stat (R, S, D, T, t, …); trust is one of exact, on_cpu,
#: stale, torn, truncated, incomplete; syscall is the number of the system call the thread is in, or -1, and
#: arg0 its first argument. A stack_id is never used again by the same Process.
RawThread = tuple[int, int, str, str, str, int, int, int]

@final
class Look:
    """One look at all threads of a process."""

    threads: list[RawThread]
    #: Frames, innermost first, of the stack ids that occur here.
    stacks: dict[int, list[RawFrame]]
    method: str  # "bpf" or "ptrace"
    copy_ns: int  # first thread's copy to the last one's, retries included
    unwind_ns: int
    symbolise_ns: int
    retried: int  # threads that had to be copied again
    sampled: int  # threads taken from a perf event sample because they were on a CPU
    shallow: int  # threads whose stack was cut because most_bytes were copied
    notes: list[str]  # what was degraded, in words for a person

@final
class ModuleInfo:
    """One ELF file mapped executable into the process."""

    path: str  # as the process's maps name it, " (deleted)" removed
    deleted: bool
    start: int  # lowest mapped address
    build_id: str | None  # lower-case hex
    symbols_from: str  # symtab, debug-file, symbol-pack, debugdata, dynsym, vdso or none
    symbols_path: str | None  # the separate debug file or the symbol pack, if any
    problem: str | None  # why symbols or unwind tables could not be used, if so

@final
class Process:
    """A process to look at, with its modules and symbols kept between looks. Not thread-safe."""

    def __init__(
        self,
        pid: int,
        *,
        method: str = "bpf",  # bpf | ptrace
        debug_dirs: Sequence[str] = ("/usr/lib/debug",),
        debug_files: Mapping[str, str] | None = None,  # build-id -> path of a debug file fetched before
        inlines: bool = False,
        kernel: bool = False,
        fitted: bytes | None = None,  # told before, on the same build of the kernel
        most_bytes: int | None = None,  # of stacks that one look copies; beyond it threads take turns
    ) -> None: ...
    fitted: bytes | None  # keep it for the next time on this kernel; None where there is nothing new
    method: str  # the method in use: bpf or ptrace
    def look(self) -> Look: ...
    def modules(self) -> list[ModuleInfo]: ...

@final
class ElfInfo:
    """What one ELF file carries."""

    machine: str  # x86_64, aarch64, ...
    build_id: str | None
    has_symtab: bool
    has_dynsym: bool
    has_debug_info: bool
    has_debugdata: bool
    debuglink: str | None  # file name in .gnu_debuglink

def serve_confined() -> None:
    """Answer the parent of the child that reads debug information; does not return."""

def print_only_location_of_panics() -> None:
    """Print only where the core panicked; the message, which may quote foreign text, is in PanicException."""

def become_confined(program: str, arguments: Sequence[str]) -> None:
    """Become this program: as nobody where we are root, without capabilities or network. Raises OSError."""

def open_regular(path: str) -> int:
    """Open a regular file; a path below /proc/PID/root never leads out of that root. Raises OSError."""

def elf_info(path: str) -> ElfInfo: ...
def find_debug_file(path: str, debug_dirs: Sequence[str]) -> str | None:
    """The separate debug file of an ELF file by build-id or .gnu_debuglink (CRC checked), or None."""

def symbol_in_file(path: str, names: Sequence[str]) -> dict[str, tuple[int, int]]:
    """``{name: (ELF virtual address, size)}`` of the named symbols (.symtab, else .dynsym)."""

def symbol_in_process(pid: int, names: Sequence[str]) -> dict[str, tuple[int, int]]:
    """``{name: (address in the process, size)}``, from the main executable, relocated by its load address."""

def read_memory(pid: int, address: int, size: int) -> bytes:
    """process_vm_readv; short reads raise OSError(EFAULT)."""

def read_many(pid: int, places: Sequence[tuple[int, int]]) -> list[bytes | None]:
    """The bytes of each ``(address, size)``, None where it is not mapped: one process_vm_readv per 1,024."""

def globals_in_process(
    pid: int, names: Sequence[str], debug_dirs: Sequence[str], debug_files: Mapping[str, str]
) -> tuple[dict[str, tuple[int, int]], str]:
    """``({name: (address in the process, size)}, source)`` of functions and variables of the executable.

    As symbol_in_process, also from a separate debug file; names that several static ones share are left out.
    The source is that of ModuleInfo.symbols_from."""

#: ``(offsets, size, kind, stride, count)``. The first offset is added to the address of the global variable
#: (or of a value of the type), each further one to the pointer that is read there. kind: unsigned, signed,
#: float, pointer or structure. Where count is not 1 the value is the sum over count elements, stride bytes
#: apart; count 0 is ``[*]`` on a pointer, whose target does not say how many there are.
RawMember = tuple[list[int], int, str, int, int]

def members_in_process(
    pid: int, members: Sequence[str], debug_dirs: Sequence[str], debug_files: Mapping[str, str]
) -> tuple[dict[str, RawMember], dict[str, str]] | None:
    """Where members of globals lie, from the DWARF of the executable or its debug file: found, and why not.

    A member is ``global.member[2].member`` or ``type.member``; pointers are followed, ``[*]`` means all
    elements, ``std::atomic`` and the like stand for their scalar, InnoDB's ib_counter_t for the sum of its
    slots. None where there is no DWARF."""

def members_in_file(path: str, members: Sequence[str]) -> tuple[dict[str, RawMember], dict[str, str]] | None:
    """As members_in_process, of a file with debug information."""

#: The format of symbol packs that is written and read.
PACK_FORMAT: int

@final
class Pack:
    """A symbol pack, read whole and checked: owner, checksum, every length. NativeError (pack) if refused."""

    def __init__(self, path: str) -> None: ...
    @staticmethod
    def of_build(build_id: str) -> Pack | None:
        """The one that this host has of a build, or None."""
    path: str
    build_id: str  # lower-case hex
    functions: int  # aliases counted
    variables: int
    size: int  # bytes of the file
    unpacked_size: int
    about: bytes  # JSON as innoscope.cli.symbol_pack wrote it; not checked
    layout: bytes

def pack_folder() -> str:
    """Where this host's packs are: ``$INNOSCOPE_SYMBOLS``, else /etc/innoscope/symbols.d."""

def find_pack(build_id: str) -> str | None:
    """The pack of a build, None without one. Owner and checksum are checked, the content is not unpacked."""

def pack_payload(path: str, about: bytes, layout: bytes) -> bytes:
    """What a pack of this file with symbols holds, to be compressed with zlib."""

def pack_seal(build_id: str, compressed: bytes, unpacked: int) -> bytes:
    """The pack of a compressed payload that has so many bytes unpacked."""

def probe_bpf() -> tuple[bool, str]:
    """Load and run the snapshot program on this very process: (works, evidence or reason)."""

def probe_perf() -> tuple[bool, str]:
    """Take one perf event sample with user registers and stack of this very process."""

def probe_uprobe_links() -> tuple[bool, str]:
    """Whether BPF links for uprobes count the calls of all threads here, and the evidence."""

def probe_ptrace() -> tuple[bool, str]:
    """SEIZE, INTERRUPT and detach a child of ours."""

def pprof(
    samples: Sequence[tuple[Sequence[RawFrame], int, Mapping[str, str]]],
    *,
    sample_type: tuple[str, str],
    taken_at_ns: int,
    duration_ns: int,
) -> bytes:
    """A profile.proto, not compressed, of (frames innermost first, count, labels).

    The type and the unit of what is counted: ``("threads", "count")``."""

def flamegraph(folded: Sequence[str], *, title: str, subtitle: str, count_name: str) -> str:
    """An interactive SVG (inferno) of folded lines ``root;...;leaf count``."""

#: The functions of this very module that ``calibration_run`` calls: one whose first instruction the kernel
#: emulates at a hit, and one where it has to be executed out of line.
CALIBRATION_FUNCTION: str
CALIBRATION_FUNCTION_STEPPED: str

@final
class CodeFile:
    """One file of code that is mapped into a process, as probes need it.

    ``name`` None is the main executable, else the beginning of a mapped file's base name ("libc.so").
    """

    def __init__(
        self, pid: int, name: str | None = None, *, debug_dirs: Sequence[str] = ("/usr/lib/debug",)
    ) -> None: ...
    path: str  # opens the mapped file itself: /proc/PID/map_files/…
    shown_path: str  # as the process sees it
    build_id: str | None  # lower-case hex
    symbols_from: str  # symtab, debug-file, symbol-pack, debugdata, dynsym or none
    problem: str | None  # why a better source of names could not be used
    bias: int  # address in the process minus ELF virtual address
    def functions(self, beginnings: Sequence[str]) -> list[tuple[str, int, int, int, bool]]:
        """``(symbol, ELF virtual address, bytes, offset in the file, stepped)`` of functions.

        Those whose symbol begins so. ``stepped``: the kernel cannot emulate the first instruction, so a hit
        costs several times as much.
        """

    def variables(self, beginnings: Sequence[str]) -> list[tuple[str, int, int]]:
        """``(symbol, address in the process, bytes)`` of variables whose symbol begins so."""

    def variables_at(self, addresses: Sequence[int]) -> list[tuple[str, int] | None]:
        """``(symbol, address of its first byte)`` of the variable that covers each address in the process."""

    def references(self, functions: Sequence[tuple[int, int]]) -> list[int] | None:
        """How often the file refers to each (ELF virtual address, bytes); None where that cannot be told.

        0 is a dead copy. Takes some tenths of a second for a server.
        """

@final
class Uprobe:
    """A BPF program (by descriptor) at a place of a file in one process, until detached or dropped.

    ``on_return`` where a C++ exception may cross the function kills the process at the next one: only for
    what the catalog marks. NativeError kinds: rights, gone, bpf.
    """

    def __init__(
        self, program: int, path: str, offset: int, pid: int, *, on_return: bool = False
    ) -> None: ...
    def detach(self) -> None:
        """Off. Waits for programs that are at work (milliseconds)."""

@final
class BpfMap:
    """A BPF map by descriptor, which stays the caller's. Values are 64-bit words, added up over CPUs."""

    def __init__(
        self, descriptor: int, *, key_bytes: int = 4, words: int = 1, per_cpu: bool = False
    ) -> None: ...
    def array(self, entries: int) -> list[list[int]]: ...
    def items(self) -> list[tuple[bytes, list[int]]]: ...
    def update(self, key: bytes, value: bytes) -> None: ...
    def delete(self, key: bytes) -> None: ...

@final
class TracePrograms:
    """The programs ``trace_enter`` and ``trace_leave`` of probes/trace, and their maps, by descriptor.

    ``argument`` (from 0, ``bits`` wide) has its values counted; with ``ring_bytes`` (a power of two of pages)
    stacks go into ``samples``. NativeError kinds: rights, bpf.
    """

    def __init__(
        self,
        *,
        argument: int | None = None,
        bits: int = 64,
        timed: bool = False,
        ring_bytes: int | None = None,
    ) -> None: ...
    def program(self, name: str) -> int: ...
    def map(self, name: str) -> int: ...
    def close(self) -> None: ...

def demangle(symbols: Sequence[str]) -> list[str]:
    """Names without parameter list and return type, in that order; what is not C++ comes back as it is."""

def create_map(name: str, kind: int, key_bytes: int, value_bytes: int, entries: int, flags: int) -> int:
    """The descriptor, the caller's to close, of an empty map; ``kind`` is of enum bpf_map_type.

    NativeError kinds: rights, bpf.
    """

def load_uprobe_program(name: str, code: bytes, maps: Sequence[int]) -> int:
    """The descriptor, the caller's to close, of a program: struct bpf_insn after struct bpf_insn.

    Where the code names a map its constant is an index in ``maps``. NativeError kinds: rights, bpf (with the
    verifier's last words), internal (the code asks for more than maps and helpers).
    """

def detach_all(probes: Sequence[Uprobe]) -> None:
    """As ``detach`` of each, all at the same time."""

def calibration_run(calls: int, *, stepped: bool = False) -> int:
    """Nanoseconds of one of so many calls of ``CALIBRATION_FUNCTION`` (or ``…_STEPPED``), caches cold."""

#: ``(stack, trust, syscall, file)``: stack by ``Samples.frames``; trust as in RawThread; the number of the
#: system call the thread was in and, for those asked for, its descriptor; else -1.
RawPlace = tuple[int, str, int, int]

@final
class Samples:
    """Stacks of one process that a BPF program sends through a ring buffer (probes/include/sample.h).

    ``ring`` is the map's descriptor. ``file_calls`` are system calls whose first argument is a descriptor
    worth telling. Errors: ``gone``, ``rights``, ``internal`` for what is no ring buffer.
    """

    def __init__(
        self,
        pid: int,
        ring: int,
        *,
        debug_dirs: Sequence[str] = ("/usr/lib/debug",),
        debug_files: Mapping[str, str] | None = None,
        inlines: bool = False,
        kernel: bool = False,
        file_calls: Sequence[int] = (),
    ) -> None: ...
    def read(self) -> int:
        """Take, unwind, name and count what is in the ring now; how many records that were.

        Does not wait. Call it before the ring is full: what does not fit is lost.
        """

    def counts(self) -> list[tuple[int, int, RawPlace, int, int]]:
        """All so far: ``(kind, tid, place, count, sum of weights)``; tid 0 stands for many if there are very
        many."""

    def frames(self, stack: int) -> list[RawFrame]:
        """Innermost first. Stacks are the same when their functions are; offsets are of the first one."""

    def comms(self) -> dict[int, str]: ...
    def modules(self) -> list[ModuleInfo]: ...
    taken: tuple[int, int]  # records taken from the ring, bytes of stack in them

@final
class OnCpu:
    """Samples of a process's threads while they run, by the software clock of each CPU. Kind 0, weight 1.

    Off when it is dropped, or we die. ``ring_bytes`` is a power of two of pages. Errors: ``rights``, ``bpf``.
    """

    def __init__(
        self, pid: int, start_time: int, *, kernel: bool = False, ring_bytes: int = 4194304
    ) -> None: ...
    ring: int
    lost: int  # samples that found the ring full
    def begin(self, period_ns: int) -> None: ...
    def end(self) -> None: ...

@final
class OffCpu:
    """What a process's threads do when they do not run, by the scheduler's events.

    Times are CLOCK_MONOTONIC, ns, and exact; stacks are those of some waits, chosen evenly. Its records are
    for ``settle``, and not in ``Samples.counts``. Off when it is dropped, or we die. Errors: ``rights``,
    ``bpf``.
    """

    def __init__(
        self,
        pid: int,
        start_time: int,
        *,
        kernel: bool = False,
        ring_bytes: int = 4194304,
        most_threads: int = 16384,
    ) -> None: ...
    ring: int
    lost: int  # records that found the ring full, threads that found no room
    cannot_look: str | None  # why threads that do not move have no stacks
    def follow(self, most: int) -> None:
        """Follow the threads without counting yet; ``most`` limits the stacks of each in 134 ms."""

    def begin(self) -> int:
        """Begin to count and return the time, after ``follow``."""

    def set_most(self, most: int) -> None: ...
    def look(self, samples: Samples) -> None:
        """Learn the stacks of the waits that are under way."""

    def end(self) -> int:
        """Count no more. The time."""

    def settle(
        self, samples: Samples, ended: int
    ) -> tuple[list[tuple[int, RawPlace | None, int, int, int]], list[tuple[int, str, int, int, int]], int]:
        """``(waits, threads, seen)``, once and after ``end``.

        waits: ``(tid, place, waits, ns blocked, ns runnable)``, place None for time whose stack nobody saw.
        threads: ``(tid, name, ns on a CPU, ns blocked, ns runnable)``; the waits of a thread add up to its
        last two. tid 0 stands for many that ended. seen: ns of the waits whose own stack was taken.
        """
