//! Every limit on files that somebody else wrote, with its reason.
//!
//! Sizes measured on the real servers: mysqld 9.7 has 80,000 dynamic symbols, 6 MiB of names, 3 MiB of unwind tables;
//! mariadbd 11.4.5 has 200 MiB of DWARF entries, which only the confined child reads.

/// Bytes that one file may keep in memory: four times what the largest server needs.
pub const FILE_BYTES: u64 = 48 << 20;
/// Bytes that all files of one process may keep in memory.
pub const PROCESS_BYTES: u64 = 96 << 20;
/// Bytes that the files of all observed processes may keep in memory: half of the sensor's `MemoryMax`. The files of the
/// largest server take 16 MiB once, and another process that runs them 2 MiB.
pub const ALL_BYTES: u64 = 384 << 20;
/// Files of one process that are read: a server maps 10 to 60, a process may map 65,530.
pub const MODULES: usize = 512;
/// Bytes of `/proc/PID/maps` that are read: 100 bytes for each of the 65,530 mappings that the kernel allows by default.
pub const MAPS_BYTES: u64 = 8 << 20;
/// Larger files are not opened: DWARF of the largest servers takes 2 GiB.
pub const FILE_SIZE: u64 = 16 << 30;
/// Section headers: the largest server has 50.
pub const SECTIONS: usize = 1024;
/// Program headers: the largest server has 15.
pub const SEGMENTS: usize = 256;
/// Bytes of the section names; compared without looking further than the wanted name is long.
pub const SECTION_NAMES: u64 = 1 << 20;
/// Bytes of one section of notes: a build-id takes 36.
pub const NOTES: u64 = 64 << 10;
/// Notes that are read before a build-id is given up.
pub const NOTE_COUNT: usize = 64;
/// Bytes of `.gnu_debuglink` and `.gnu_debugaltlink`: a path and a checksum.
pub const LINK: usize = 8 << 10;
/// Symbols of one table.
pub const SYMBOLS: u64 = 1 << 20;
/// Bytes of the names of one symbol table.
pub const STRINGS: u64 = 32 << 20;
/// Bytes of one name. Longer ones are no names: C++ templates of the real servers reach 3 KiB.
pub const NAME: usize = 4 << 10;
/// Names at one address that are compared to choose the best one; identical code folding gives up to 100.
pub const ALIASES: usize = 256;
/// Functions around functions, of which the innermost covers an address; compilers make two.
pub const NESTING: usize = 64;
/// Symbols that one question by the beginning of a name may return, and the bytes of their names: all of a server's.
pub const NAMED: usize = 256 << 10;
/// See [`NAMED`].
pub const NAMED_BYTES: usize = 16 << 20;
/// Bytes that a compressed section may unpack to, outside the confined child. Nothing read there is compressed by
/// any distribution; tests do it.
pub const UNPACKED: u64 = 4 << 20;
/// Bytes that a compressed section may unpack to in the confined child: its memory is limited too.
pub const UNPACKED_CONFINED: u64 = 1 << 30;
/// How many times its packed size a section may unpack to: compilers' output reaches 20, zeros reach 1,032.
pub const RATIO: u64 = 100;
/// Bytes that may be unpacked whatever the ratio.
pub const RATIO_FREE: u64 = 64 << 10;
/// Bytes that `.gnu_debugdata` may unpack to; mysqld's takes 10 MiB. The decompressor needs as much again.
pub const DEBUGDATA: u64 = 20 << 20;
/// Bytes of a file whose CRC32 is computed, where it has no build-id to compare (1 GiB takes 0.7 s).
pub const CRC: u64 = 512 << 20;
/// Bytes that one search through all loaded sections reads: the largest server has 70 MiB of them.
pub const SCANNED: u64 = 256 << 20;
/// Bytes of one entry of `.eh_frame`: MYSQLparse has 1.5 KiB.
pub const UNWIND_ENTRY: usize = 64 << 10;
/// Entries of `.eh_frame` that are indexed where there is no `.eh_frame_hdr`.
pub const UNWIND_ENTRIES: usize = 1 << 20;
/// Operations of one DWARF expression: the expressions of a procedure linkage table take 10.
pub const EXPRESSION: u32 = 500;
/// Return addresses on one stack: deeper ones are recursion out of hand, or bytes that lie.
pub const FRAMES: usize = 1024;
/// Steps that the stacks of one snapshot may take, each some 20 to 50 ns. 20,000 threads of 30 frames take 600,000.
pub const STEPS: u64 = 5_000_000;
/// Unwind rules kept, by address: a server uses some 10,000.
pub const RULES: usize = 64 << 10;
