"""The Rust core (agent/native): copies, unwinds and names the stacks of a live process.

Every call releases the GIL while it works. Addresses are virtual addresses of the looked-at process unless
said otherwise; times are nanoseconds; sizes are bytes. Failures of the operating system are raised as
``OSError`` with errno set; everything else as ``NativeError``, whose ``args`` are ``(kind, detail)``.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, final

class NativeError(Exception):
    """``args = (kind, detail)``. Kinds: ``gone`` (the process ended), ``rights`` (EPERM or EACCES from the
    kernel), ``traced`` (another debugger has it), ``bpf`` (this kernel cannot run the snapshot program),
    ``elf`` (not a usable ELF file), ``arch`` (another CPU architecture), ``internal``; ``pack`` (a refused
    symbol pack: the third of ``args`` is the remedy or None)."""

@final
class Frame:
    """One function on a stack. Raises ValueError for text that is not valid Unicode, OverflowError for an
    offset that is not a 64-bit address."""

    function: str | None  # None where no symbol covers the address
    module: str  # the file's base name
    offset: int  # the address within the module (ELF virtual address)
    inlined: bool
    kernel: bool
    label: str  # the demangled function, or ``module+0x…`` where no symbol covers the address
    def __init__(
        self, function: str | None, module: str, offset: int, inlined: bool = False, kernel: bool = False
    ) -> None: ...
    def __hash__(self) -> int: ...

@final
class RawThread:
    """One thread of a snapshot."""

    tid: int
    ns_tid: int  # the id inside the process's own pid namespace
    comm: str
    state: str  # the letter of /proc/PID/stat: R, S, D, T, t, …
    trust: str  # exact, on_cpu, stale, torn, truncated or incomplete
    stack: int  # key of ``Look.stacks``; never used again by the same Process
    syscall: int  # the number of the system call that the thread is in, or -1
    argument: int  # the first argument of that call
    def __hash__(self) -> int: ...

@final
class Look:
    """One look at all threads of a process."""

    threads: list[RawThread]
    #: Frames, innermost first, of the stack ids that occur here. The same stack is the same object at the
    #: next look, and equal frames are one object.
    stacks: dict[int, tuple[Frame, ...]]
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

class WaitRule(Protocol):
    """A rule of waits.yaml; wait_catalog.Rule explains the fields."""

    @property
    def wait(self) -> str: ...
    @property
    def state(self) -> str | None: ...
    @property
    def frames(self) -> Sequence[str]: ...
    @property
    def also(self) -> Sequence[str]: ...
    @property
    def leaf(self) -> Sequence[str]: ...
    @property
    def never(self) -> Sequence[str]: ...
    @property
    def comm(self) -> Sequence[str]: ...
    @property
    def syscalls(self) -> frozenset[str]: ...
    @property
    def files(self) -> frozenset[str]: ...

@final
class Classifier:
    """Assigns wait classes: the first rule whose conditions all hold wins. Answers for names are cached."""

    def __init__(
        self, rules: Sequence[WaitRule], class_states: Mapping[str, str], libraries: Sequence[str]
    ) -> None:
        """Compile the rules; ValueError for a malformed pattern.

        ``class_states`` has the state of classes whose rules without one it limits. ``libraries`` are the
        patterns of files that are not the server's own.
        """

    def classify(
        self,
        frames: Sequence[Frame],
        *,
        comm: str = "",
        syscall: str | None = None,
        file: str | None = None,
        running: bool = False,
        stale: bool = False,
    ) -> str:
        """Return the wait class of one thread.

        ``syscall`` and ``file`` are names (descriptors.py). ``running`` is true for a thread on a CPU or
        ready for one; ``stale`` when its stack is that of an earlier moment, which proves no wait.
        """

    def from_server(self, frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
        """Return the frames from the server's innermost own function on; all of them if there is none."""

class KindPatterns(Protocol):
    """A kind in threads.yaml."""

    @property
    def frames(self) -> Sequence[str]: ...
    @property
    def comm(self) -> Sequence[str]: ...

@final
class ThreadKind:
    """A kind of thread. One that is not sure gives way to what the thread was seen to be before."""

    name: str
    sure: bool
    def __hash__(self) -> int: ...

@final
class ThreadKinds:
    """Assigns kinds by the functions at the root of a stack, else by the thread's name."""

    def __init__(self, kinds: Mapping[Any, KindPatterns], pool: Sequence[str]) -> None:
        """``kinds`` and ``pool`` are as in threads.yaml. ValueError for a malformed pattern."""

    def of(self, frames: Sequence[Frame], comm: str) -> ThreadKind:
        """Return the kind of a thread with this stack (innermost first) and this name."""

def plain_name(function: str) -> str:
    """Return a function's name without what compilers and linkers add to it (``.isra.3``, ``@plt``)."""

def pattern_problem(patterns: Sequence[str]) -> str | None:
    """Return why a pattern (a name with ``*`` and ``?``, or ``/a regular expression/``) is malformed.

    Or why the patterns cannot be compiled together.
    """

@final
class Symbol:
    """Where a symbol is: an ELF virtual address, or an address in the process."""

    address: int
    size: int
    def __init__(self, address: int, size: int) -> None: ...

def symbol_in_file(path: str, names: Sequence[str]) -> dict[str, Symbol]:
    """Return the named symbols (.symtab, else .dynsym) at ELF virtual addresses."""

def symbol_in_process(pid: int, names: Sequence[str]) -> dict[str, Symbol]:
    """Return the named symbols of the main executable at addresses in the process."""

def read_memory(pid: int, address: int, size: int) -> bytes:
    """process_vm_readv; short reads raise OSError(EFAULT)."""

def read_many(pid: int, places: Sequence[tuple[int, int]]) -> list[bytes | None]:
    """The bytes of each ``(address, size)``, None where it is not mapped: one process_vm_readv per 1,024."""

@final
class Globals:
    """Functions and variables of a process, and the source of their names (as ModuleInfo.symbols_from)."""

    symbols: dict[str, Symbol]
    source: str

def globals_in_process(
    pid: int, names: Sequence[str], debug_dirs: Sequence[str], debug_files: Mapping[str, str]
) -> Globals:
    """Return functions and variables of the executable, at addresses in the process.

    As symbol_in_process, also from a separate debug file; names that several static ones share are left out.
    """

@final
class Member:
    """Where a member is, seen from its global variable or from a value of its type.

    ``offsets[0]`` is added to the variable's address, each further one to the pointer that is read there.
    Where ``count`` is not 1 the value is the sum over ``count`` elements, ``stride`` bytes apart; 0 is
    ``[*]`` on a pointer, whose target does not say how many there are. ValueError for an unknown kind.
    """

    offsets: tuple[int, ...]
    size: int
    kind: str  # unsigned, signed, float, pointer or structure
    stride: int
    count: int
    def __init__(
        self, offsets: Sequence[int], size: int, kind: str, stride: int = 0, count: int = 1
    ) -> None: ...
    def __hash__(self) -> int: ...

@final
class Members:
    """The members that were found, and why the others are missing, by path."""

    found: dict[str, Member]
    missing: dict[str, str]
    def __init__(self, found: dict[str, Member], missing: dict[str, str]) -> None: ...

def members_in_process(
    pid: int, members: Sequence[str], debug_dirs: Sequence[str], debug_files: Mapping[str, str]
) -> Members | None:
    """Find members of globals by the DWARF of the executable or of its debug file.

    A member is ``global.member[2].member`` or ``type.member``; pointers are followed, ``[*]`` means all
    elements, ``std::atomic`` and the like stand for their scalar, InnoDB's ib_counter_t for the sum of its
    slots. None where there is no DWARF."""

def members_in_file(path: str, members: Sequence[str]) -> Members | None:
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

@final
class Feature:
    """Whether something works here, and the evidence or the reason."""

    works: bool
    detail: str
    def __init__(self, works: bool, detail: str) -> None: ...

def probe_bpf() -> Feature:
    """Load and run the snapshot program on this very process."""

def probe_perf() -> Feature:
    """Take one perf event sample with user registers and stack of this very process."""

def probe_uprobe_links() -> Feature:
    """Test whether BPF links for uprobes count the calls of all threads here."""

def probe_ptrace() -> Feature:
    """SEIZE, INTERRUPT and detach a child of ours."""

def pprof(
    samples: Sequence[tuple[Sequence[Frame], int, Mapping[str, str]]],
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
class Function:
    """A function of a mapped file that can be probed."""

    symbol: str
    address: int  # ELF virtual address
    size: int
    offset: int  # in the file
    stepped: bool  # the kernel cannot emulate its first instruction: a hit costs several times as much
    def __init__(self, symbol: str, address: int, size: int, offset: int, stepped: bool) -> None: ...
    def __hash__(self) -> int: ...

@final
class Variable:
    """A variable of a process."""

    symbol: str
    address: int  # of its first byte, in the process
    size: int
    def __hash__(self) -> int: ...

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
    def functions(self, beginnings: Sequence[str]) -> list[Function]:
        """Return the functions whose symbol begins with one of these."""

    def variables(self, beginnings: Sequence[str]) -> list[Variable]:
        """Return the variables whose symbol begins with one of these."""

    def variables_at(self, addresses: Sequence[int]) -> list[Variable | None]:
        """Return the variable that covers each address in the process."""

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
    def entries(self) -> dict[bytes, list[int]]: ...
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

@final
class Place:
    """Where a thread was."""

    stack: int  # for ``Samples.frames``
    trust: str  # as RawThread.trust
    syscall: int  # the number of the system call that the thread was in, or -1
    file: int  # its descriptor, for the calls that were asked for, or -1
    def __hash__(self) -> int: ...

@final
class Count:
    """Samples of one thread at one place; tid 0 stands for many if there are very many."""

    kind: int
    tid: int
    place: Place
    records: int
    weight: int  # the sum of their weights

@final
class Taken:
    """What was taken from a ring buffer."""

    records: int
    bytes: int  # of stacks in them

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

    def counts(self) -> list[Count]:
        """Return all so far."""

    def frames(self, stack: int) -> tuple[Frame, ...]:
        """Innermost first. Stacks are the same when their functions are; offsets are of the first one."""

    def comms(self) -> dict[int, str]: ...
    def modules(self) -> list[ModuleInfo]: ...
    taken: Taken  # from the ring, so far

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
class ThreadTimes:
    """What one thread did, in ns. Its waits add up to the last two. tid 0 stands for many that ended."""

    tid: int
    comm: str
    running_ns: int
    blocked_ns: int
    runnable_ns: int
    wall_ns: int  # the sum
    def __init__(
        self, tid: int, comm: str, running_ns: int, blocked_ns: int, runnable_ns: int
    ) -> None: ...

@final
class Waits:
    """The waits of one thread at one place; None for time whose stack nobody saw."""

    tid: int
    place: Place | None
    count: int
    blocked_ns: int
    runnable_ns: int

@final
class Settled:
    """A complete profile of waits."""

    waits: list[Waits]
    threads: list[ThreadTimes]
    seen_ns: int  # of the waits whose own stack was taken

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

    def settle(self, samples: Samples, ended: int) -> Settled:
        """Complete the profile, once and after ``end``."""
