"""The Rust core (agent/native): copies, unwinds and names the stacks of a live process.

Every call releases the GIL while it works. Addresses are virtual addresses in the observed process unless
stated otherwise; times are nanoseconds; sizes are bytes. Failures of the operating system are raised as
``OSError`` with errno set; all other failures as ``NativeError``.
"""

from collections.abc import Container, Mapping, Sequence
from typing import Any, Protocol, final

class NativeError(Exception):
    """A failure of the core. ``native_errors.failure`` returns its ``args`` as kind, detail and remedy.

    Kinds: ``gone`` (the process exited), ``rights`` (EPERM or EACCES from the kernel), ``traced`` (another
    debugger is attached), ``bpf`` (this kernel cannot run the BPF program), ``perf`` (this kernel cannot open
    the perf events), ``elf`` (not a usable ELF file), ``arch`` (another CPU architecture), ``internal``;
    ``pack`` (a rejected symbol pack). Only ``pack`` has a remedy, which may be None.
    """

@final
class Frame:
    """One function on a stack. Raises ValueError for a name that is not valid Unicode, and OverflowError for
    an offset that is not a 64-bit address."""

    function: str | None  # None if no symbol covers the address
    module: str  # the file's base name
    offset: int  # the address within the module (ELF virtual address)
    inlined: bool
    kernel: bool
    label: str  # the demangled function name, or ``module+0x…`` if no symbol covers the address
    def __init__(
        self, function: str | None, module: str, offset: int, inlined: bool = False, kernel: bool = False
    ) -> None: ...
    def __hash__(self) -> int: ...

@final
class RawThread:
    """One thread of a snapshot."""

    tid: int
    ns_tid: int  # the thread id in the process's own pid namespace
    comm: str
    state: str  # the letter of /proc/PID/stat: R, S, D, T, t, …
    trust: str  # how reliable the stack is: exact, inferred, on_cpu, stale, torn, truncated or incomplete
    stack: int  # key of ``RawSnapshot.stacks``; the same Process never reuses it for another stack
    syscall: int  # the number of the system call that the thread is in, or -1
    argument: int  # the first argument of that call
    def __hash__(self) -> int: ...

@final
class RawSnapshot:
    """One snapshot of all threads of a process."""

    threads: list[RawThread]
    #: Frames, innermost first, by stack id. A stack that occurs again in the next snapshot is the same tuple
    #: object, and equal frames share one object.
    stacks: dict[int, tuple[Frame, ...]]
    method: str  # bpf, bpf-nosleep, procfs or ptrace
    copy_ns: int  # from the copy of the first thread to that of the last, including retries
    unwind_ns: int
    symbolise_ns: int
    unchanged: int  # threads that had not run since the last snapshot, so that their stacks were not copied
    retried: int  # threads that had to be copied again
    sampled: int  # threads taken from a perf event sample because they were on a CPU
    shallow: int  # threads whose stack was cut because ``most_bytes`` was reached
    notes: list[str]  # what was degraded, as messages for the user

@final
class ModuleInfo:
    """One ELF file mapped executable into the process."""

    path: str  # as in /proc/PID/maps, without " (deleted)"
    deleted: bool
    start: int  # lowest mapped address
    build_id: str | None  # lower-case hex
    symbols_from: str  # symtab, debug-file, symbol-pack, debugdata, dynsym, vdso or none
    symbols_path: str | None  # the separate debug file or the symbol pack, if any
    problem: str | None  # why symbols or unwind tables cannot be used; None if they can

@final
class Process:
    """Takes snapshots of a process, and caches its modules and symbols between them. Not thread-safe."""

    def __init__(
        self,
        pid: int,
        *,
        method: str = "auto",  # auto | bpf | bpf-nosleep | procfs | ptrace
        debug_dirs: Sequence[str] = ("/usr/lib/debug",),
        debug_files: Mapping[str, str] | None = None,  # build-id -> path of a debug file that was downloaded
        inlines: bool = False,
        kernel: bool = False,
        fitted: bytes | None = None,  # the cached ``Process.fitted`` of the same kernel build
        most_bytes: int | None = None,  # limit of stack bytes per snapshot; beyond it threads take turns
    ) -> None: ...
    fitted: bytes | None  # the snapshot program fitted to this kernel, to be cached; None if it is not new
    method: str  # the method in use: bpf, bpf-nosleep, procfs or ptrace
    def take_snapshot(self) -> RawSnapshot: ...
    def run_counts(self, tids: Sequence[int]) -> dict[int, int]:
        """Return the current run counts of threads: nanoseconds on a CPU plus how often they were put on one.

        A thread whose count is the same in ``copied_run_counts`` of the next or the last snapshot did not run
        in between. Threads that have exited are omitted; with ptrace, under which threads run, all are.
        """

    def copied_run_counts(self, tids: Sequence[int]) -> dict[int, int]:
        """Return the run counts when the last snapshot copied the threads, if they were off the CPU then."""

    def modules(self) -> list[ModuleInfo]: ...

@final
class ElfInfo:
    """The contents of one ELF file that matter for symbols."""

    machine: str  # x86_64, aarch64, ...
    build_id: str | None
    has_symtab: bool
    has_dynsym: bool
    has_debug_info: bool
    has_debugdata: bool
    debuglink: str | None  # file name in .gnu_debuglink

def serve_confined() -> None:
    """Serve the parent process as the child that reads debug information. Does not return."""

def print_only_location_of_panics() -> None:
    """Print only the location of panics. The message may quote untrusted text; it is in PanicException."""

def become_confined(program: str, arguments: Sequence[str]) -> None:
    """Replace this process by a confined program: as nobody if we are root, without capabilities or network.

    Raise OSError.
    """

def open_regular(path: str) -> int:
    """Open a regular file and return its descriptor. A path below /proc/PID/root cannot leave that root.

    Raise OSError.
    """

def elf_info(path: str) -> ElfInfo: ...
def find_debug_file(path: str, debug_dirs: Sequence[str]) -> str | None:
    """Return the separate debug file of an ELF file by build-id or .gnu_debuglink (CRC checked), or None."""

class WaitRule(Protocol):
    """A rule of waits.yaml; the fields are documented in wait_catalog.Rule."""

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
    """Assigns wait classes: the first rule whose conditions all hold wins. Results are cached by name."""

    def __init__(
        self, rules: Sequence[WaitRule], class_states: Mapping[str, str], libraries: Sequence[str]
    ) -> None:
        """Compile the rules. Raise ValueError for a malformed pattern.

        ``class_states`` maps a class to the state of those of its rules that do not set one. ``libraries``
        are patterns of files that are not the server's own.
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

        ``syscall`` and ``file`` are names (descriptors.py). ``running`` is true for a thread that is on a
        CPU or runnable. ``stale`` is true if the thread ran but was not sampled: its stack is from its last
        kernel entry, so it does not prove that the thread is waiting.
        """

    def server_frames(self, frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
        """Return the frames from the server's own innermost function outwards; all if there is none."""

class KindPatterns(Protocol):
    """A kind of thread in threads.yaml."""

    @property
    def frames(self) -> Sequence[str]: ...
    @property
    def comm(self) -> Sequence[str]: ...

@final
class ThreadKind:
    """The kind of a thread. If it is not ``sure``, the thread's earlier kind is preferred."""

    name: str
    sure: bool
    def __hash__(self) -> int: ...

@final
class ThreadKinds:
    """Assigns kinds to threads by the functions at the root of a stack, else by the thread's name."""

    def __init__(self, kinds: Mapping[Any, KindPatterns], pool: Sequence[str]) -> None:
        """Compile ``kinds`` and ``pool`` of threads.yaml. Raise ValueError for a malformed pattern."""

    def of(self, frames: Sequence[Frame], comm: str) -> ThreadKind:
        """Return the kind of a thread with the stack ``frames`` (innermost first) and the name ``comm``."""

@final
class Patterns:
    """Patterns for whole names: names with ``*`` and ``?``, or ``/a regular expression/``."""

    def __init__(self, patterns: Sequence[str]) -> None:
        """Compile the patterns. Raise ValueError for a malformed pattern."""

    def matches(self, name: str) -> bool:
        """Return whether one of the patterns matches the name."""

def plain_name(function: str) -> str:
    """Return a function's name without what compilers and linkers add to it (``.isra.3``, ``@plt``)."""

def pattern_problem(patterns: Sequence[str]) -> str | None:
    """Return why a pattern is malformed, or why the patterns cannot be compiled together; None if they can.

    See ``Patterns``.
    """

@final
class Symbol:
    """The location of a symbol. ``address`` is an ELF virtual address, or an address in the process."""

    address: int
    size: int
    def __init__(self, address: int, size: int) -> None: ...

def symbol_in_file(path: str, names: Sequence[str]) -> dict[str, Symbol]:
    """Return the named symbols of a file (.symtab, else .dynsym), with ELF virtual addresses."""

def symbol_in_process(pid: int, names: Sequence[str]) -> dict[str, Symbol]:
    """Return the named symbols of the main executable, with addresses in the process."""

def read_memory(pid: int, address: int, size: int) -> bytes:
    """Read memory with process_vm_readv. Raise OSError; short reads raise OSError(EFAULT)."""

@final
class Command:
    """A command that a connection executes. If it is equal at two times, it is the same command."""

    thd: int  # address of the connection
    connection: int
    number: int  # enum_server_command
    query: int  # the number of the statement, which the server never uses again; 0 if there is none
    start: int  # address of the text
    length: int
    def __init__(
        self, thd: int, connection: int, number: int, query: int, start: int, length: int
    ) -> None: ...
    def __hash__(self) -> int: ...

@final
class StatementDetails:
    """The digest of a command's text, and the names of the connection's user and schema.

    ``text`` contains the first 4,096 bytes, if requested.
    """

    text: bytes | None
    digest: tuple[str, str] | None  # the result of ``normalise``
    user: str | None
    schema: str | None

@final
class StatementReader:
    """Reads the commands that connections execute, from a server's memory. Not thread-safe.

    Raises ValueError if a member or variable is missing.
    """

    def __init__(
        self,
        pid: int,
        *,
        walk: str,  # linked, tree or arrays (owners.yaml)
        members: Mapping[str, Member],
        roots: Mapping[str, int],
        version: int,  # as in ``normalise``
        mysql_9: bool,
        max_chars: int,
        arrays: int | None = None,
    ) -> None: ...
    def find(self, known: Container[int]) -> list[int]:
        """Find the connections that execute a command, at most 1,000; return the ids of their threads.

        ``known`` contains the ids of the server's threads. A thread that seems to execute several commands is
        omitted.
        """

    def choose(self, tids: Sequence[int]) -> None:
        """Choose the connections of these threads, as ``find`` last read them, instead of the busy ones."""

    def commands(self) -> dict[int, Command]:
        """Return the current commands of the connections that ``find`` or ``choose`` chose, by thread id.

        Connections that ended since, or that another thread serves, are omitted, and threads that seem to
        execute several commands.
        """

    def details(self, commands: Sequence[Command], with_text: bool) -> list[StatementDetails]:
        """Read the details of each command. They are valid if the command is the same later.

        Without ``with_text``, the texts are overwritten in this process's memory as soon as they are
        normalised.
        """

def read_many(pid: int, places: Sequence[tuple[int, int]]) -> list[bytes | None]:
    """Return the bytes at each ``(address, size)``, or None if it is not mapped.

    One call of process_vm_readv reads 1,024 places.
    """

@final
class Globals:
    """Functions and variables of a process, and the source of their names (see ModuleInfo.symbols_from)."""

    symbols: dict[str, Symbol]
    source: str

def globals_in_process(
    pid: int, names: Sequence[str], debug_dirs: Sequence[str], debug_files: Mapping[str, str]
) -> Globals:
    """Return functions and variables of the executable, with addresses in the process.

    Unlike symbol_in_process, it also reads a separate debug file. Names that several static functions or
    variables share are omitted.
    """

@final
class Member:
    """The location of a member relative to its global variable, or to an object of its type.

    ``offsets[0]`` is added to the variable's address, and each further offset to the pointer that is read
    there. If ``count`` is not 1, the value is the sum over ``count`` elements, ``stride`` bytes apart. A
    ``count`` of 0 means ``[*]`` on a pointer, where the number of elements is unknown. Raises
    ValueError for an unknown kind.
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
    """Members by path: ``found`` contains their locations, ``missing`` the reasons for the others."""

    found: dict[str, Member]
    missing: dict[str, str]
    def __init__(self, found: dict[str, Member], missing: dict[str, str]) -> None: ...

def members_in_process(
    pid: int, members: Sequence[str], debug_dirs: Sequence[str], debug_files: Mapping[str, str]
) -> Members | None:
    """Find members of global variables in the DWARF of the executable or of its debug file.

    A member is ``global.member[2].member`` or ``type.member``; pointers are followed. ``[*]`` means all
    elements. ``std::atomic`` and similar wrappers are read as their scalar, and InnoDB's ib_counter_t as the
    sum of its slots. Return None if there is no DWARF."""

def members_in_file(path: str, members: Sequence[str]) -> Members | None:
    """Find members in the same way as members_in_process, but in a file with debug information."""

#: Version of the format of symbol packs that are written and read.
PACK_FORMAT: int

@final
class Pack:
    """A symbol pack, read in full. Its owner, its checksum and every length are checked.

    Raises NativeError (``pack``) if the pack is rejected.
    """

    def __init__(self, path: str) -> None: ...
    @staticmethod
    def of_build(build_id: str) -> Pack | None:
        """Return this host's pack for a build, or None if there is none."""
    path: str
    build_id: str  # lower-case hex
    functions: int  # including aliases
    variables: int
    size: int  # size of the file in bytes
    unpacked_size: int
    about: bytes  # JSON as innoscope.cli.symbol_pack wrote it; not checked
    layout: bytes

def pack_folder() -> str:
    """Return the folder of this host's packs: ``$INNOSCOPE_SYMBOLS``, else /etc/innoscope/symbols.d."""

def find_pack(build_id: str) -> str | None:
    """Return the path of the pack for a build, or None.

    The pack's owner and checksum are checked, but its content is not unpacked.
    """

def pack_payload(path: str, about: bytes, layout: bytes) -> bytes:
    """Return the content of a pack for this file with symbols. The caller compresses it with zlib."""

def pack_seal(build_id: str, compressed: bytes, unpacked: int) -> bytes:
    """Return the pack with this compressed payload; ``unpacked`` is the payload's size before compression."""

@final
class Feature:
    """Whether a feature works on this host, with the evidence or the reason why not."""

    works: bool
    detail: str
    def __init__(self, works: bool, detail: str) -> None: ...

def probe_bpf() -> Feature:
    """Test whether the sleepable snapshot program can be loaded and run on this process."""

def probe_bpf_nosleep() -> Feature:
    """Test whether the snapshot program that is not sleepable can be loaded and run on this process."""

def probe_procfs() -> Feature:
    """Test whether the threads of this process can be copied by reading /proc."""

def probe_perf() -> Feature:
    """Test whether perf events can sample user registers and stack, on this process."""

def probe_profile_bpf() -> Feature:
    """Test whether BPF can profile the CPU time of this process."""

def probe_profile_perf() -> Feature:
    """Test whether perf events can profile the CPU time of this process."""

def probe_uprobe_links() -> Feature:
    """Test whether BPF links for uprobes count the calls of all threads on this kernel."""

def probe_ptrace() -> Feature:
    """Test ptrace: seize, interrupt and detach a child process."""

class PprofSample(Protocol):
    """A stack in a profile. Frames are innermost first."""

    @property
    def frames(self) -> Sequence[Frame]: ...
    @property
    def count(self) -> int: ...
    @property
    def labels(self) -> Mapping[str, str]: ...

class SampleType(Protocol):
    """The name and the unit of the counts in a profile, such as ``threads`` and ``count``."""

    @property
    def name(self) -> str: ...
    @property
    def unit(self) -> str: ...

def pprof(
    samples: Sequence[PprofSample],
    *,
    sample_type: SampleType,
    taken_at_ns: int,
    duration_ns: int,
) -> bytes:
    """Return an uncompressed profile.proto."""

def flamegraph(folded: Sequence[str], *, title: str, subtitle: str, count_name: str) -> str:
    """Return an interactive SVG (made by inferno) from folded lines ``root;...;leaf count``."""

def normalise(
    statement: bytes, *, max_chars: int, version: int, mysql_9: bool, certain: bool
) -> tuple[str, str]:
    """Return the normalised text of an SQL statement, cut to ``max_chars`` characters, and the complete text
    by the rules of MySQL 9, which does not depend on ``mysql_9``. See ``sampling.digests``."""

#: Functions of this module that ``calibration_run`` calls. At a hit, the kernel emulates the first
#: instruction of the first function; that of the second has to be single-stepped out of line.
CALIBRATION_FUNCTION: str
CALIBRATION_FUNCTION_STEPPED: str

@final
class Function:
    """A function of a mapped file that can be probed."""

    symbol: str
    address: int  # ELF virtual address
    size: int
    offset: int  # file offset of the code
    stepped: bool  # the kernel cannot emulate the first instruction: a hit costs several times as much
    def __init__(self, symbol: str, address: int, size: int, offset: int, stepped: bool) -> None: ...
    def __hash__(self) -> int: ...

@final
class Variable:
    """A variable of a process."""

    symbol: str
    address: int  # in the process
    size: int
    def __hash__(self) -> int: ...

@final
class CodeFile:
    """An ELF file with code that is mapped into a process, as probes need it.

    ``name`` is the prefix of a mapped file's base name ("libc.so"); None selects the main executable.
    """

    def __init__(
        self, pid: int, name: str | None = None, *, debug_dirs: Sequence[str] = ("/usr/lib/debug",)
    ) -> None: ...
    path: str  # /proc/PID/map_files/…, which opens the mapped file itself
    shown_path: str  # the path as the process sees it
    build_id: str | None  # lower-case hex
    symbols_from: str  # symtab, debug-file, symbol-pack, debugdata, dynsym or none
    problem: str | None  # why a better source of symbols could not be used
    bias: int  # the address in the process minus the ELF virtual address
    def functions(self, beginnings: Sequence[str]) -> list[Function]:
        """Return the functions whose symbol begins with one of ``beginnings``."""

    def variables(self, beginnings: Sequence[str]) -> list[Variable]:
        """Return the variables whose symbol begins with one of ``beginnings``."""

    def variables_at(self, addresses: Sequence[int]) -> list[Variable | None]:
        """Return, for each address in the process, the variable that covers it, or None."""

    def references(self, functions: Sequence[Function]) -> list[int] | None:
        """Return how many references the file has to each function.

        A function with 0 references is a dead copy. Return None if the file is not for x86-64 or too large.
        Takes a few tenths of a second for a server.
        """

@final
class Uprobe:
    """A BPF program (by descriptor) at an offset of a file in one process, until detached or dropped.

    With ``on_return``, a C++ exception that is thrown through the function kills the process. Use it only for
    functions that the catalog marks as safe. NativeError kinds: rights, gone, bpf.
    """

    def __init__(
        self, program: int, path: str, offset: int, pid: int, *, on_return: bool = False
    ) -> None: ...
    def detach(self) -> None:
        """Detach the probe. Waits a few milliseconds for programs that are running."""

@final
class BpfMap:
    """A BPF map by descriptor, which the caller still owns. Values are 64-bit words, summed over all CPUs."""

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

    With ``argument`` (a number from 0), the values of that argument, ``bits`` wide, are counted. With
    ``ring_bytes`` (a number of pages that is a power of two), stacks are written to the map ``samples``.
    NativeError kinds: rights, bpf.
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
    """Return the demangled names, in the same order, without parameter lists and return types.

    Names that are not C++ symbols are returned unchanged.
    """

def create_map(name: str, kind: int, key_bytes: int, value_bytes: int, entries: int, flags: int) -> int:
    """Create an empty map and return its descriptor, which the caller closes.

    ``kind`` is a value of enum bpf_map_type.
    NativeError kinds: rights, bpf.
    """

def load_uprobe_program(name: str, code: bytes, maps: Sequence[int]) -> int:
    """Load a program and return its descriptor, which the caller closes.

    ``code`` is an array of struct bpf_insn. Instructions that load a map contain its index in ``maps``.
    NativeError kinds: rights, bpf (with the end of the verifier's log), internal (the code uses features
    other than maps and helpers).
    """

def detach_all(probes: Sequence[Uprobe]) -> None:
    """Detach all ``probes`` at the same time."""

def calibration_run(calls: int, *, stepped: bool = False) -> int:
    """Call ``CALIBRATION_FUNCTION`` (or ``…_STEPPED``) ``calls`` times, and return the median in ns.

    The caches are cold at each call.
    """

@final
class Place:
    """The place where a thread was sampled."""

    stack: int  # the argument for ``Samples.frames``
    trust: str  # see RawThread.trust
    syscall: int  # the number of the system call that the thread was in, or -1
    file: int  # the call's first argument, a file descriptor, if the call is in ``file_calls``; else -1
    def __hash__(self) -> int: ...

@final
class Count:
    """The samples of one thread at one place. If there are very many threads, tid 0 combines further ones."""

    kind: int
    tid: int
    place: Place
    records: int
    weight: int  # the sum of their weights

@final
class Taken:
    """How much was read from a ring buffer."""

    records: int
    bytes: int  # total size of the stacks in these records

@final
class Samples:
    """Stacks of one process that a BPF program sends through a ring buffer, or that perf events sample.

    ``ring`` is the map's descriptor; None if only perf events are read. probes/include/sample.h defines the
    records in the ring buffer. ``file_calls`` lists the numbers of the system calls whose first argument,
    a file descriptor, is recorded. NativeError kinds: gone, rights, internal (not a ring buffer).
    """

    def __init__(
        self,
        pid: int,
        ring: int | None,
        *,
        debug_dirs: Sequence[str] = ("/usr/lib/debug",),
        debug_files: Mapping[str, str] | None = None,
        inlines: bool = False,
        kernel: bool = False,
        file_calls: Sequence[int] = (),
    ) -> None: ...
    def read(self, events: PerfOnCpu | None = None) -> int:
        """Read, unwind, name and count the records in the ring or of ``events``, and return their number.

        Does not wait. Call it before the ring is full, because further records are lost then.
        """

    def counts(self) -> list[Count]:
        """Return all counts so far."""

    def frames(self, stack: int) -> tuple[Frame, ...]:
        """Return the frames of a stack, innermost first.

        Stacks with the same functions have one id. Offsets are those of the first of these stacks.
        """

    def comms(self) -> dict[int, str]: ...
    def modules(self) -> list[ModuleInfo]: ...
    taken: Taken  # totals so far

@final
class OnCpu:
    """Samples a process's threads while they run, by the software clock of each CPU.

    All samples have kind 0 and weight 1. Sampling stops when the object is dropped or the process dies.
    ``ring_bytes`` must be the page size times a power of two. NativeError kinds: rights, bpf.
    """

    def __init__(
        self,
        pid: int,
        start_time: int,
        period_ns: int,
        *,
        kernel: bool = False,
        ring_bytes: int = 4194304,
    ) -> None: ...
    ring: int
    lost: int  # number of samples lost because the ring was full
    def begin(self) -> None: ...
    def end(self) -> None: ...

@final
class PerfOnCpu:
    """Samples the threads of a process without BPF; see ``OnCpu``. ``Samples.read`` takes this object.

    ``ring_bytes`` is the maximum size of the ring buffer of each CPU, a number of pages that is a power of
    two; it is less if the limit on locked memory does not permit it. The caller checks that the pid still
    belongs to the same process. NativeError kinds: gone, rights, perf.
    """

    def __init__(
        self, pid: int, period_ns: int, *, kernel: bool = False, ring_bytes: int = 2097152
    ) -> None: ...
    per_cpu: bool  # there is one clock per CPU; otherwise each thread has its own clocks
    in_kernel: bool  # time in the kernel is sampled
    lost: int  # number of samples lost because a ring was full
    def begin(self) -> None: ...
    def end(self) -> None: ...

@final
class ThreadTimes:
    """The times of one thread in ns. Its waits add up to ``blocked_ns`` and ``runnable_ns``.

    tid 0 combines threads that exited, if there are very many.
    """

    tid: int
    comm: str
    running_ns: int
    blocked_ns: int
    runnable_ns: int
    wall_ns: int  # the sum of the three times
    def __init__(self, tid: int, comm: str, running_ns: int, blocked_ns: int, runnable_ns: int) -> None: ...

@final
class Waits:
    """The waits of one thread at one place; ``place`` is None for time without a stack."""

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
    seen_ns: int  # total time of the waits whose own stack was captured

@final
class OffCpu:
    """Measures the waits of a process's threads by the scheduler's events.

    Times are exact, in ns of CLOCK_MONOTONIC. Stacks are captured for a uniform sample of the waits. The
    records are used by ``settle``; they are not in ``Samples.counts``. Profiling stops when the object is
    dropped or the agent dies. NativeError kinds: rights, bpf.
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
    lost: int  # number of records and threads lost because the ring or a map was full
    snapshot_problem: str | None  # why there are no stacks of threads that do not switch; None if there are
    def follow(self, most: int) -> None:
        """Follow the threads without counting yet. ``most`` is the limit of stacks per thread in 134 ms."""

    def begin(self) -> int:
        """Start to count, after ``follow``, and return the time."""

    def set_most(self, most: int) -> None: ...
    def take_snapshot(self, samples: Samples) -> None:
        """Take a snapshot for the stacks of the waits in progress."""

    def end(self) -> int:
        """Stop counting and return the time."""

    def settle(self, samples: Samples, ended: int) -> Settled:
        """Complete the profile, which ``end`` ended at time ``ended``, and return it. Call it only once."""
