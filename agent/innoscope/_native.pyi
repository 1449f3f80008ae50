"""The Rust core (agent/native), which copies, unwinds and symbolizes the stacks of a live process.

Slow calls release the GIL. Addresses are virtual addresses in the observed process unless
stated otherwise; times are nanoseconds; sizes are bytes. Failures are raised as ``NativeError``, or as
``OSError`` with errno set where a function passes on the error of a system call.
"""

from collections.abc import Container, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, final

class NativeError(Exception):
    """A failure of the Rust core. ``native_errors.failure`` returns its ``args`` as kind, detail and remedy.

    Kinds: ``gone`` (the process exited), ``rights`` (EPERM or EACCES from the kernel), ``traced`` (another
    debugger is attached), ``bpf`` (this kernel cannot run the BPF program), ``perf`` (this kernel cannot open
    the perf events), ``procfs`` (this kernel lacks a file in /proc), ``elf`` (not a usable ELF file),
    ``arch`` (another CPU architecture), ``internal`` (a bug), ``pack`` (a rejected symbol pack), ``damaged``
    (a damaged file of the history). Only ``pack`` has a remedy, which may be None.
    """

@final
class Frame:
    """One function on a stack.

    Raise ValueError if the name is not valid Unicode, or OverflowError if the offset is not a 64-bit address.
    """

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
    trust: str  # reliability of the stack: exact, inferred, on_cpu, stale, torn, truncated or incomplete
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
    copy_ns: int  # from the start of the first copy to the end of the last one, including retries
    unwind_ns: int
    symbolize_ns: int
    unchanged: int  # threads that had not run since the last snapshot, so their stacks were not copied
    retried: int  # threads that had to be copied again
    sampled: int  # threads on a CPU that a perf event sampled
    shallow: int  # threads whose stack was truncated because ``most_bytes`` was reached
    notes: list[str]  # messages for the user about degraded results

@final
class ModuleInfo:
    """An ELF file that the process has mapped as executable."""

    path: str  # as in /proc/PID/maps, without " (deleted)"
    deleted: bool
    start: int  # lowest mapped address
    build_id: str | None  # lower-case hex
    symbols_from: str  # symtab, debug-file, symbol-pack, debugdata, dynsym, vdso or none
    symbols_path: str | None  # the separate debug file or the symbol pack, if any
    problem: str | None  # why symbols or unwind tables cannot be used; None if they can

@final
class Process:
    """A source of snapshots of a process, which caches the modules and symbols. Not thread-safe."""

    def __init__(
        self,
        pid: int,
        *,
        method: str = "auto",  # auto | bpf | bpf-nosleep | procfs | ptrace
        debug_dirs: Sequence[str] = ("/usr/lib/debug",),
        debug_files: Mapping[str, str] | None = None,  # build-id -> path of a downloaded debug file
        inlines: bool = False,
        kernel: bool = False,
        fitted: bytes | None = None,  # the cached ``Process.fitted`` of the same kernel build
        most_bytes: int | None = None,  # limit on stack bytes per snapshot; beyond it, threads take turns
    ) -> None: ...
    fitted: bytes | None  # the program relocated for this kernel, to be cached; None if there is no new one
    method: str  # the method in use: bpf, bpf-nosleep, procfs or ptrace
    def take_snapshot(self) -> RawSnapshot: ...
    def run_counts(self, tids: Sequence[int]) -> dict[int, int]:
        """Return the current run counts of threads: nanoseconds on a CPU plus the number of times scheduled.

        A thread whose count is the same in ``copied_run_counts`` of the next or the last snapshot did not run
        in between. Threads that have exited are omitted. With ptrace, all are omitted, because stopping a
        thread makes it run.
        """

    def copied_run_counts(self, tids: Sequence[int]) -> dict[int, int]:
        """Return the run counts that threads off the CPU had when the last snapshot copied them."""

    def modules(self) -> list[ModuleInfo]: ...

@final
class ElfInfo:
    """The properties of an ELF file that matter for symbols."""

    machine: str  # x86_64, aarch64, ...
    build_id: str | None
    has_symtab: bool
    has_dynsym: bool
    has_debug_info: bool
    has_debugdata: bool
    debuglink: str | None  # file name in .gnu_debuglink

def serve_confined() -> None:
    """Serve the parent process as the child that reads debug information. This function does not return."""

def limit_retained_memory() -> None:
    """Limit the freed memory that malloc keeps. Call this before any thread starts."""

def print_only_location_of_panics() -> None:
    """Print only the location of a panic. The message, which may quote untrusted text, is not printed."""

def become_confined(program: str, arguments: Sequence[str]) -> None:
    """Replace this process with a confined program, which has no capabilities and no network access.

    If this process is root, the program runs as ``nobody``.

    Raise OSError if this fails; otherwise, the function does not return.
    """

def open_regular(path: str) -> int:
    """Open a regular file and return its descriptor. A path below /proc/PID/root cannot leave that root.

    Raise OSError if the file cannot be opened or is not a regular file.
    """

def file_identity(path: str) -> tuple[int, int]:
    """Return the device and inode of a file. A path below /proc/PID/root cannot leave that root.

    Raise OSError if the kernel reports an error.
    """

def elf_info(path: str) -> ElfInfo: ...
def find_debug_file(path: str, debug_dirs: Sequence[str]) -> str | None:
    """Return the path of an ELF file's separate debug file, or None.

    The file is found by build-id or by .gnu_debuglink, and its build-id or CRC is checked.
    """

class _WaitRule(Protocol):
    """A rule of waits.yaml; the fields are documented in wait_catalog.WaitRule."""

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
    """The rules that assign wait classes. The first rule whose conditions all hold wins."""

    def __init__(
        self, rules: Sequence[_WaitRule], class_states: Mapping[str, str], libraries: Sequence[str]
    ) -> None:
        """Compile the rules. Raise ValueError if a pattern is malformed.

        ``class_states`` maps a class to the default state of its rules. ``libraries`` contains patterns for
        files that are not the server's own.
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
        """Return the frames from the server's own innermost function outward; all if there is none."""

class _KindPatterns(Protocol):
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
    """The kinds of threads, recognized by the functions at the root of a stack, else by the thread's name."""

    def __init__(self, kinds: Mapping[Any, _KindPatterns], pool: Sequence[str]) -> None:
        """Compile ``kinds`` and ``pool`` from threads.yaml. Raise ValueError if a pattern is malformed."""

    def of(self, frames: Sequence[Frame], comm: str) -> ThreadKind:
        """Return the kind of a thread with the stack ``frames`` (innermost first) and the name ``comm``."""

@final
class Patterns:
    """Patterns for whole names: names with ``*`` and ``?``, or ``/a regular expression/``."""

    def __init__(self, patterns: Sequence[str]) -> None:
        """Compile the patterns. Raise ValueError if a pattern is malformed."""

    def matches(self, name: str) -> bool:
        """Return whether one of the patterns matches the name."""

def plain_name(function: str) -> str:
    """Return a function's name without the suffixes of compilers and linkers (``.isra.3``, ``@plt``)."""

def pattern_problem(patterns: Sequence[str]) -> str | None:
    """Return why a pattern is malformed, or why the patterns cannot be compiled together; None if valid.

    See ``Patterns``.
    """

@final
class Symbol:
    """The location of a symbol. ``address`` is an ELF virtual address, or an address in the process."""

    address: int
    size: int
    def __init__(self, address: int, size: int) -> None: ...

def symbol_in_file(path: str, names: Sequence[str]) -> dict[str, Symbol]:
    """Return the named symbols of a file (.symtab, else .gnu_debugdata and .dynsym).

    The addresses are ELF virtual addresses.
    """

def symbol_in_process(pid: int, names: Sequence[str]) -> dict[str, Symbol]:
    """Return the named symbols of the main executable, with addresses in the process."""

def read_memory(pid: int, address: int, size: int) -> bytes:
    """Read memory with process_vm_readv.

    Raise NativeError: gone, rights, or internal if the memory is not mapped.
    """

@final
class Command:
    """A command that a connection is executing. Equal values mean the same execution of the same command."""

    thd: int  # address of the connection
    connection: int
    number: int  # enum_server_command
    query: int  # the statement's id, which the server never reuses; 0 if there is none
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
    digest: tuple[str, str] | None  # the result of ``normalize``
    user: str | None
    schema: str | None

@final
class StatementReader:
    """A reader of the commands that connections are executing, in a server's memory. Not thread-safe.

    Raise ValueError if a member or variable is missing.
    """

    def __init__(
        self,
        pid: int,
        *,
        walk: str,  # linked, tree or arrays (owners.yaml)
        members: Mapping[str, Member],
        roots: Mapping[str, int],
        version: int,  # as in ``normalize``
        mysql_9: bool,
        max_chars: int,
        arrays: int | None = None,
    ) -> None: ...
    def find(self, known: Container[int]) -> list[int]:
        """Find up to 1,000 connections that are executing a command; return their thread ids.

        ``known`` contains the ids of the server's threads. A thread that seems to be executing several
        commands is omitted.
        """

    def choose(self, tids: Sequence[int]) -> None:
        """Choose the connections of these threads, as of the last ``find``, even if they were idle then."""

    def commands(self) -> dict[int, Command]:
        """Return the current commands of the connections that ``find`` or ``choose`` chose, by thread id.

        Connections that have ended or are served by another thread are omitted, and so are threads that seem
        to be executing several commands.
        """

    def details(self, commands: Sequence[Command], with_text: bool) -> list[StatementDetails]:
        """Read the details of each command. They are valid if a later ``commands`` returns the same command.

        Without ``with_text``, the texts are overwritten in this process's memory as soon as they are
        normalized.
        """

def read_many(pid: int, places: Sequence[tuple[int, int]]) -> list[bytes | None]:
    """Return the bytes at each ``(address, size)``, or None if the range is not mapped.

    One call to process_vm_readv reads up to 1,024 ranges.
    """

@final
class Globals:
    """Functions and variables of a process, and the source of their names (see ModuleInfo.symbols_from)."""

    symbols: dict[str, Symbol]
    source: str

def globals_in_process(
    pid: int, names: Sequence[str], debug_dirs: Sequence[str], debug_files: Mapping[str, str]
) -> Globals:
    """Return the named functions and variables of the executable, with addresses in the process.

    Unlike symbol_in_process, also read a separate debug file. Names that several static functions or
    variables share are omitted.
    """

@final
class Member:
    """The location of a member relative to its global variable, or to an object of its type.

    ``offsets[0]`` is added to the variable's address, and each further offset to the pointer that is read
    there. If ``count`` is not 1, the value is the sum over ``count`` elements, ``stride`` bytes apart. A
    ``count`` of 0 means ``[*]`` on a pointer, where the number of elements is unknown. Raise
    ValueError if the kind is unknown.
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

#: Version of the symbol pack format that is written and read.
PACK_FORMAT: int

@final
class Pack:
    """A symbol pack, read in full. Its owner, its checksum and every length are checked.

    Raise NativeError (``pack``) if the pack is rejected.
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
    about: bytes  # JSON that innoscope.cli.symbol_pack wrote; not checked
    layout: bytes

def pack_folder() -> str:
    """Return the directory of this host's packs: ``$INNOSCOPE_SYMBOLS``, else /etc/innoscope/symbols.d."""

def find_pack(build_id: str) -> str | None:
    """Return the path of the pack for a build, or None.

    The pack's owner and checksum are checked, but its content is not unpacked. Raise NativeError (``pack``)
    if the pack is rejected.
    """

def pack_payload(path: str, about: bytes, layout: bytes) -> bytes:
    """Return the content of a pack made from this file. The caller compresses the content with zlib.

    Raise NativeError (``elf``) if the file cannot be used.
    """

def pack_seal(build_id: str, compressed: bytes, unpacked: int) -> bytes:
    """Return the pack with this compressed payload; ``unpacked`` is the payload's size before compression."""

HostFeature: TypeAlias = Literal[
    "bpf",
    "bpf-nosleep",
    "procfs",
    "perf",
    "profile-bpf",
    "profile-perf",
    "profile-waits-perf",
    "uprobe-links",
    "uprobe-events",
    "ptrace",
]

@final
class Feature:
    """The result of testing a feature on this host. ``detail`` is the evidence, or the reason for failure."""

    works: bool
    detail: str
    def __init__(self, works: bool, detail: str) -> None: ...

def detect(feature: HostFeature) -> Feature:
    """Test a feature on this host. Raise OSError or NativeError if the test itself fails.

    - ``bpf``, ``bpf-nosleep``: run the sleepable or the non-sleepable snapshot program on this process
    - ``procfs``: copy the threads of this process by reading /proc
    - ``perf``: sample the user registers and the stack of a thread with a perf event
    - ``profile-bpf``, ``profile-perf``: profile this process's CPU time with BPF or with perf events,
      respectively
    - ``profile-waits-perf``: profile this process's waits with perf events
    - ``uprobe-links``: count the calls made by all threads with a BPF link for uprobes
    - ``uprobe-events``: the same with a perf event
    - ``ptrace``: seize, interrupt and detach a child process
    """

class _PprofSample(Protocol):
    """A stack in a profile. Frames are innermost first."""

    @property
    def frames(self) -> Sequence[Frame]: ...
    @property
    def count(self) -> int: ...
    @property
    def labels(self) -> Mapping[str, str]: ...

class _SampleType(Protocol):
    """The name and the unit of the counts in a profile, such as ``threads`` and ``count``."""

    @property
    def name(self) -> str: ...
    @property
    def unit(self) -> str: ...

def pprof(
    samples: Sequence[_PprofSample],
    *,
    sample_type: _SampleType,
    taken_at_ns: int,
    duration_ns: int,
) -> bytes:
    """Return an uncompressed profile.proto."""

def flamegraph(folded: Sequence[str], *, title: str, subtitle: str, count_name: str) -> str:
    """Return an interactive SVG, drawn by inferno from folded stacks (``root;…;leaf count``)."""

def normalize(
    statement: bytes, *, max_chars: int, version: int, mysql_9: bool, certain: bool
) -> tuple[str, str]:
    """Return two normalized texts of an SQL statement: one truncated to ``max_chars`` characters, and the
    complete text according to MySQL 9's rules, regardless of ``mysql_9``. See ``target.digests``."""

def is_unfinished(statement: bytes) -> bool:
    """Return whether an SQL statement ends within a string, a quoted name or a comment.

    The default SQL mode is assumed. If the answer depends on the server's version, return True.
    """

def blake2s(data: bytes, *, size: int) -> bytes:
    """Return the same digest as ``hashlib.blake2s``, whose module would load OpenSSL into the sensor."""

#: The names of a sample's text columns, in the order of the columns.
HISTORY_TEXTS: list[str]

@final
class HistoryHour:
    """The samples of an hour that are not in a file yet. Thread-safe."""

    #: Number of samples.
    rows: int
    #: Estimated size of everything that is not in a file yet.
    used_bytes: int
    #: True if there is no snapshot, not even one without busy threads.
    empty: bool
    def __new__(cls) -> HistoryHour: ...
    def add(
        self,
        server: str,
        shapes: Sequence[tuple[tuple[str | None, ...], int]],
        snapshots: Sequence[
            tuple[int, float, Sequence[int], Sequence[int], Sequence[int | None], Sequence[int | None]]
        ],
    ) -> None:
        """Add snapshots: the time in Unix microseconds, the weight in seconds, and for each busy thread the
        id, the position of its shape in ``shapes``, its connection, and the connection that it is waiting
        for. A shape consists of texts, in the order of ``HISTORY_TEXTS``, and the hash of a stack.

        Raise ValueError if the columns have different lengths, or if a position is not in ``shapes``.
        """

    def add_stack(self, stack: int, functions: Sequence[str]) -> None:
        """Add the functions of a stack, innermost first, unless the hour's files contain them."""

    def add_digest(self, digest: str, text: str) -> None:
        """Add the text of a digest, unless the hour's files contain it."""

    def write(self, folder: PathLike[str]) -> None:
        """Write one file per table that has rows, and wait until they are on the disk.

        Raise OSError if a file cannot be written.
        """

    def clear(self, written: bool) -> None:
        """Discard the samples. ``written`` is false if they could not be written."""

def history_check(table: str, path: PathLike[str]) -> int:
    """Return the number of rows of a file. Raise OSError, or NativeError if the file is damaged."""

def history_open(table: str, path: PathLike[str]) -> int:
    """Check a file as ``history_check`` does, and return a descriptor of it, which the caller must close."""

def history_merge(table: str, inputs: Sequence[PathLike[str]], output: PathLike[str]) -> None:
    """Write the rows of several files into one, without decoding them.

    Raise OSError if a file cannot be read or written, or NativeError if one is damaged.
    """

def history_group(
    table: str,
    files: Sequence[PathLike[str]],
    *,
    span: tuple[int, int],
    by: Sequence[str],
    filters: Sequence[tuple[str, Sequence[str | None], bool]],
    most_groups: int,
) -> tuple[
    list[tuple[list[int | str | None], float, int]],
    tuple[float, int],
    tuple[int, int] | None,
    list[tuple[Path, str]],
]:
    """Group the rows of a time span (Unix microseconds) by columns.

    A filter is a column, the wanted values, and whether a prefix of a value is enough. Return the groups,
    largest first, with the sum of their weights and the number of rows; the same two values for the rows
    that would need more than ``most_groups`` groups; the times of the first and the last row; and the files
    that could not be read, with the reasons. If a column has too many different values, the rest are shown
    as "(other values)".
    """

def history_stacks(
    files: Sequence[PathLike[str]], wanted: Sequence[int]
) -> tuple[dict[int, list[str]], list[tuple[Path, str]]]:
    """Return the functions of stacks, innermost first, and the files that could not be read."""

def history_digests(
    files: Sequence[PathLike[str]], wanted: Sequence[str]
) -> tuple[dict[str, str], list[tuple[Path, str]]]:
    """Return the texts of digests, and the files that could not be read."""

#: Symbols of the functions that ``calibration_run`` calls. At a hit, the kernel emulates the first
#: instruction of CALIBRATION_FUNCTION, but has to single-step that of the other function out of line.
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
    """An ELF file with code that is mapped into a process, opened for probing.

    ``name`` is the prefix of a mapped file's base name ("libc.so"); None selects the main executable. Raise
    NativeError: gone, rights, or elf if no such file is mapped or the file is damaged.
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
    def functions(self, prefixes: Sequence[str]) -> list[Function]:
        """Return the functions whose symbols start with one of ``prefixes``."""

    def variables(self, prefixes: Sequence[str]) -> list[Variable]:
        """Return the variables whose symbols start with one of ``prefixes``."""

    def variables_at(self, addresses: Sequence[int]) -> list[Variable | None]:
        """Return, for each address in the process, the variable that covers it, or None."""

    def references(self, functions: Sequence[Function]) -> list[int] | None:
        """Return the number of references in the file to each function.

        A function without references is a dead copy. Return None if the file is not for x86-64 or is too
        large. This takes a few tenths of a second for a server.
        """

@final
class Uprobe:
    """A BPF program (by descriptor) attached at a file offset in one process, until detached or dropped.

    With ``on_return``, a C++ exception that crosses the function kills the process. Use ``on_return`` only
    for functions that the catalog marks as safe. Raise NativeError if attaching fails: rights, gone or bpf.
    """

    def __init__(
        self, program: int, path: str, offset: int, pid: int, *, on_return: bool = False
    ) -> None: ...
    def detach(self) -> None:
        """Detach the probe. This takes 50 ms or more, because the kernel waits for running programs."""

@final
class BpfMap:
    """A BPF map by descriptor, which the caller owns. Values are 64-bit words; per-CPU values are summed."""

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

    With ``argument`` (an index from 0), the programs count the values of that argument, which is ``bits``
    bits wide. With ``ring_bytes`` (a power-of-two number of pages), they write stacks to the ``samples`` map.
    Raise NativeError if loading fails: rights or bpf.
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

    ``kind`` is a value of enum bpf_map_type. Raise NativeError if this fails: rights or bpf.
    """

def load_uprobe_program(name: str, code: bytes, maps: Sequence[int]) -> int:
    """Load a program and return its descriptor, which the caller closes.

    ``code`` is an array of struct bpf_insn. Instructions that load a map contain its index in ``maps``.
    Raise NativeError if this fails: rights, bpf (with the end of the verifier's log), or internal (the code
    refers to anything other than maps and helpers).
    """

def detach_all(probes: Sequence[Uprobe]) -> None:
    """Detach all ``probes`` together, which is faster than one at a time."""

def calibration_run(calls: int, *, stepped: bool = False) -> int:
    """Call ``CALIBRATION_FUNCTION`` (or ``…_STEPPED``) ``calls`` times. Return the median duration in ns.

    The caches are cold on each call.
    """

@final
class Place:
    """The stack and the system call of a thread when it was sampled."""

    stack: int  # the argument for ``Samples.frames``
    trust: str  # see RawThread.trust
    syscall: int  # the number of the system call that the thread was in, or -1
    file: int  # the call's first argument, a file descriptor, if the call is in ``file_calls``; else -1
    def __hash__(self) -> int: ...

@final
class Count:
    """The samples of one thread at one place. Beyond 200,000 counts, new samples are attributed to tid 0."""

    kind: int
    tid: int
    place: Place
    records: int
    weight: int  # the sum of the records' weights

@final
class Taken:
    """The amount of data read from a ring buffer."""

    records: int
    bytes: int  # total size of the stacks in these records

@final
class Samples:
    """Stacks of one process that a BPF program sends through a ring buffer, or that perf events sample.

    ``ring`` is the descriptor of the ring buffer's map; None if only perf events are read.
    probes/include/sample.h defines the records in the ring buffer. ``file_calls`` lists the numbers of the
    system calls whose first argument, a file descriptor, is recorded. Raise NativeError if this fails: gone,
    rights or internal (not a ring buffer).
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
        """Read, unwind, symbolize and count the records of the ring, or of ``events``. Return their number.

        This does not wait. Call it before the ring is full, because further records are then lost.
        """

    def counts(self) -> list[Count]:
        """Return all counts so far."""

    def frames(self, stack: int) -> tuple[Frame, ...]:
        """Return the frames of a stack, innermost first.

        Stacks with the same functions share one id. The offsets are from the first of these stacks.
        """

    def collect_statements(self, version: int, mysql_9: bool, max_chars: int) -> None:
        """Collect the statements that ``OffCpu`` samples. The arguments are the same as for ``normalize``."""

    def take_statements(self) -> list[SampledStatement]:
        """Return the sampled statements that have ended since the last call."""

    def prepared_digest(self, connection: int, number: int) -> tuple[str, str] | None:
        """Return the digest of a prepared statement, given its connection id and statement id, or None."""

    missing_statements: tuple[int, int]  # sampled statements that have not ended, and those that were dropped
    def comms(self) -> dict[int, str]: ...
    def modules(self) -> list[ModuleInfo]: ...
    notes: list[str]  # the limits on stacks and names that were reached
    taken: Taken  # totals so far

@final
class SampledStatement:
    """A statement that has ended. Times are in ns; ``began`` and ``ended`` are CLOCK_MONOTONIC times."""

    tid: int
    command: int  # enum_server_command
    digest: tuple[str, str] | None  # the result of ``normalize``; None if the text is unknown
    # the connection id and statement id of a prepared statement; None if unknown
    prepared: tuple[int, int] | None
    began: int
    ended: int
    blocked_ns: int
    runnable_ns: int
    waits: list[tuple[Place | None, int]]  # blocked time by place; the place is None for time without a stack

@final
class OnCpu:
    """A sampler of a process's running threads, with a software clock event per CPU.

    All samples have kind 0 and weight 1. Sampling stops when the object is dropped or this process exits.
    ``ring_bytes`` must be a power-of-two number of pages. Raise NativeError if loading fails: rights or
    bpf.
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
    """A sampler of a process's running threads without BPF, for ``Samples.read``; see ``OnCpu``.

    ``ring_bytes`` is the maximum size of each CPU's ring buffer, a power-of-two number of pages. The rings
    are smaller if the limit on locked memory requires it. The caller checks that the pid still belongs to
    the same process. Raise NativeError if opening the events fails: gone, rights or perf.
    """

    def __init__(
        self, pid: int, period_ns: int, *, kernel: bool = False, ring_bytes: int = 2097152
    ) -> None: ...
    per_cpu: bool  # True for one clock event per CPU, False if each thread has its own
    in_kernel: bool  # True if kernel time is sampled
    lost: int  # number of samples lost because a ring was full
    def begin(self) -> None: ...
    def end(self) -> None: ...

@final
class ThreadTimes:
    """The times of one thread in ns. Its waits add up to ``blocked_ns`` and ``runnable_ns``.

    Beyond 50,000 rows of waits, all further threads are combined into tid 0.
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
    """A measurement of the waits of a process's threads, based on the scheduler's events.

    Times are exact, in ns of CLOCK_MONOTONIC. Stacks are captured for a random sample of the waits. Their
    records are for ``settle``; ``Samples.counts`` does not contain them. Profiling stops when the object is
    dropped or this process exits. Raise NativeError if loading fails: rights or bpf.

    With ``commands``, the programs ``statement_enter`` and ``statement_leave`` sample statements.
    ``commands`` locates the command's number, the address and the length of its text, the connection's THD,
    and the id of the prepared statement. Each location is the number of an argument, and an offset if the
    argument is a pointer to a structure. ``members`` contains the offsets in a THD of the connection's id,
    and of the address and the length of its statement's text. After ``set_statements``, one statement in
    ``every`` is sampled, and waits outside sampled statements are ignored.
    """

    def __init__(
        self,
        pid: int,
        start_time: int,
        *,
        kernel: bool = False,
        ring_bytes: int = 4194304,
        most_threads: int = 16384,
        commands: Sequence[tuple[int, int | None]] | None = None,
        members: tuple[int, int, int] | None = None,
    ) -> None: ...
    ring: int
    lost: int  # number of records and events lost because the ring or a map was full
    hits: int  # number of commands since ``statement_enter`` was attached
    def statement_program(self, name: str) -> int: ...
    def set_statements(self, every: int) -> None: ...
    snapshot_problem: str | None  # why threads that do not switch have no stacks; None if they do
    def follow(self, most: int) -> None:
        """Follow the threads without counting yet.

        ``most`` is the approximate maximum number of stacks that are captured per thread in 134 ms.
        """

    def begin(self) -> int:
        """Start counting, after ``follow``, and return the start time."""

    def set_most(self, most: int) -> None: ...
    def take_snapshot(self, samples: Samples) -> None:
        """Take a snapshot to capture the stacks of the waits in progress."""

    def end(self) -> int:
        """Stop counting and return the end time."""

    def settle(self, samples: Samples, ended: int) -> Settled:
        """Complete and return the profile. ``ended`` is the time that ``end`` returned. Call this once."""

@final
class PerfOffCpu:
    """A measurement of the waits of a process's threads without BPF; see ``OffCpu``.

    The time between a wakeup and the thread's arrival on a CPU counts as blocked. Approximately ``most``
    stacks per second are captured. ``ring_bytes`` is the maximum size of each CPU's ring buffer for stacks.
    It must be a power-of-two number of pages. The ring buffer for switches is half as large. Both buffers are
    smaller if the limit on locked memory requires it. The caller checks that the pid still belongs to the
    same process. Raise NativeError if opening the events fails: gone, rights or perf.
    """

    def __init__(
        self, pid: int, *, kernel: bool = False, most: int = 1000, ring_bytes: int = 4194304
    ) -> None: ...
    per_cpu: bool  # True for one event per CPU; False for events per thread, with stacks from snapshots only
    lost: int  # number of records lost because a ring was full
    lost_switches: int  # lost records other than stacks; if there are any, the times are inexact
    snapshot_problem: str | None  # why snapshots cannot be taken; None if they can
    def begin(self) -> int:
        """Start counting and return the start time, in ns of CLOCK_MONOTONIC."""

    def read(self, samples: Samples) -> None:
        """Process the records that have arrived."""

    def take_snapshot(self, samples: Samples) -> None:
        """Copy the stacks of waiting threads whose stack is unknown."""

    def end(self) -> int:
        """Stop counting and return the end time."""

    def settle(self, samples: Samples) -> Settled:
        """Complete and return the profile, after ``end``. Call this once."""
