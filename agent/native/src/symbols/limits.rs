//! Defines all limits for reading untrusted files, with their reasons.
//!
//! Sizes measured on real servers: mysqld 9.7 has 80,000 dynamic symbols, 6 MiB of names and 3 MiB of unwind
//! tables; mariadbd 11.4.5 has 200 MiB of DWARF entries, which only the confined child reads.

/// Maximum size of one file in memory, in bytes: four times what the largest server needs.
pub const FILE_BYTES: u64 = 48 << 20;
/// Maximum size of all files of one process in memory, in bytes.
pub const PROCESS_BYTES: u64 = 96 << 20;
/// Maximum size of the files of all observed processes in memory, in bytes: half of the sensor unit's
/// `MemoryMax`. The files of the largest server take 16 MiB; each additional process that maps the same
/// files adds 2 MiB.
pub const ALL_BYTES: u64 = 384 << 20;
/// Maximum number of files that are read per process: a server maps 10 to 60, but a process can
/// map 65,530.
pub const MODULES: usize = 512;
/// Maximum number of bytes read from `/proc/PID/maps`: more than 100 for each of the 65,530 mappings that the
/// kernel allows by default.
pub const MAPS_BYTES: u64 = 8 << 20;
/// Maximum size in bytes of files that are opened: the largest servers with DWARF have 2 GiB.
pub const FILE_SIZE: u64 = 16 << 30;
/// Maximum number of section headers per file: the largest server has 50.
pub const SECTIONS: usize = 1024;
/// Maximum number of program headers per file: the largest server has 15.
pub const SEGMENTS: usize = 256;
/// Maximum size of the section name table, in bytes. A comparison reads no more than the length of the
/// wanted name.
pub const SECTION_NAMES: u64 = 1 << 20;
/// Maximum size of one note section, in bytes: a note with a build-id takes 36 bytes.
pub const NOTES: u64 = 64 << 10;
/// Maximum number of notes that are read to find a build-id.
pub const NOTE_COUNT: usize = 64;
/// Maximum size of `.gnu_debuglink` and `.gnu_debugaltlink`, in bytes. They hold a path and a checksum or
/// build-id.
pub const LINK: usize = 8 << 10;
/// Maximum number of symbols per table.
pub const SYMBOLS: u64 = 1 << 20;
/// Maximum size of the names in one symbol table, in bytes.
pub const STRINGS: u64 = 32 << 20;
/// Maximum length of one name, in bytes: C++ templates of real servers reach 3 KiB. Longer names are ignored.
pub const NAME: usize = 4 << 10;
/// Maximum length of a function's name in a stack, in characters. Longer names end with an ellipsis. C++
/// templates reach 3 KiB only in their mangled form: demangling removes parameters and long arguments.
pub const SHOWN_NAME: usize = 512;
/// Maximum size of the distinct names in the stacks of one process, in bytes, including their copies in
/// Python. The names of further functions are omitted. This is enough for 17,000 names of 40 characters; a
/// few thousand functions occur in stacks.
pub const SHOWN_NAMES_BYTES: usize = 4 << 20;
/// The part of [`SHOWN_NAMES_BYTES`] that each process may use regardless of the others: enough for 2,000 names.
pub const SHOWN_NAMES_RESERVED: usize = 512 << 10;
/// Maximum size of the names of all processes beyond their reserved parts, in bytes. With the reserved parts of 64
/// servers, the names take 48 MiB.
pub const SHOWN_NAMES_SHARED: usize = 16 << 20;
/// Size of the entries for one name in the tables of names, here and in Python, in bytes.
pub const SHOWN_NAME_ENTRY: usize = 160;
/// Maximum number of names at one address that are compared to choose the best one. Identical code folding
/// produces up to 100.
pub const ALIASES: usize = 256;
/// Maximum number of enclosing symbols that a lookup tries. Compilers nest at most two functions.
pub const NESTING: usize = 64;
/// Maximum size of all symbols that one lookup by prefix may return, in bytes: enough for all symbols of a server.
pub const NAMED_BYTES: usize = 32 << 20;
/// Size of such a symbol without its name, in bytes, here and as an object in Python.
pub const NAMED_ENTRY: usize = 250;
/// Maximum unpacked size of a compressed section outside the confined child, in bytes. No distribution
/// compresses the sections read there; only tests do.
pub const UNPACKED: u64 = 4 << 20;
/// Maximum unpacked size of a compressed section in the confined child, in bytes. The child's memory is
/// limited as well.
pub const UNPACKED_CONFINED: u64 = 1 << 30;
/// Maximum compression ratio of a section: compiler output reaches a ratio of 20, and zeros 1,032.
pub const RATIO: u64 = 100;
/// The ratio is not checked for sections of at most this unpacked size, in bytes.
pub const RATIO_FREE: u64 = 64 << 10;
/// Maximum unpacked size of `.gnu_debugdata`, in bytes: mysqld's is 10 MiB. The decompressor needs the same
/// amount again.
pub const DEBUGDATA: u64 = 20 << 20;
/// Maximum size in bytes of a file whose CRC32 is computed because it has no build-id (1 GiB takes 0.7 s).
pub const CRC: u64 = 512 << 20;
/// Maximum number of bytes that one scan of all loaded sections reads: the sections of the largest server take
/// 70 MiB.
pub const SCANNED: u64 = 256 << 20;
/// Maximum size of one `.eh_frame` entry, in bytes: the entry of MYSQLparse is 1.5 KiB.
pub const UNWIND_ENTRY: usize = 64 << 10;
/// Maximum number of `.eh_frame` entries that are indexed if there is no `.eh_frame_hdr`.
pub const UNWIND_ENTRIES: usize = 1 << 20;
/// Maximum number of operations per DWARF expression: an expression for a procedure linkage table has 10.
pub const EXPRESSION: u32 = 500;
/// Maximum number of return addresses per stack. Deeper stacks are runaway recursion or malformed data.
pub const FRAMES: usize = 1024;
/// Maximum number of frames of the distinct stacks of one process, of 48 bytes each. Further stacks are dropped.
/// This is enough for 4,000 distinct stacks with 50 frames. Threads that wait for the same reason share a stack.
pub const STACK_FRAMES: usize = 200_000;
/// The part of [`STACK_FRAMES`] that each process may use regardless of the others: enough for 100 distinct stacks
/// with 30 frames.
pub const STACK_FRAMES_RESERVED: usize = 3_000;
/// Maximum number of frames of all processes beyond their reserved parts. If each frame has an address of its own, it
/// takes 350 bytes, including the cached address and the copy in Python. With the reserved parts of 64 servers, the
/// frames then take 140 MB.
pub const STACK_FRAMES_SHARED: usize = 200_000;
/// Maximum size of the distinct stacks of one profile, in bytes, with 200 bytes per function and 100 bytes per stack.
/// Further stacks are dropped. Stacks with the same functions are one stack: a profile of a real server has a few
/// thousand stacks of 50 frames, which take 2 MB.
pub const PROFILE_STACKS: usize = 64 << 20;
/// Maximum number of unwind steps per snapshot, each about 20 to 50 ns. 20,000 threads with 30 frames take
/// 600,000 steps.
pub const STEPS: u64 = 5_000_000;
/// Maximum number of cached unwind rules, one per address, of 80 bytes each; this many fit into a hash table of
/// 1,024 slots. Samples of running threads keep adding addresses (a busy server has more than 10,000), so a larger
/// cache would grow for days.
pub const RULES: usize = 850;
