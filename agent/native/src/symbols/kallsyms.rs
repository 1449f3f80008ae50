//! The names of the kernel's functions.

use std::fs::File;
use std::io::{self, BufRead, BufReader};

/// Kernel symbols have no size. Past this many bytes after the last symbol an address is not taken to belong to it.
const MAX_OFFSET: u64 = 64 << 10;

/// The functions of the running kernel and its modules, some 3 MB; load it only when it is asked for.
#[derive(Debug, Default)]
pub struct Kallsyms {
    /// Address and beginning of the name in `names`; the name ends where the next one in file order begins.
    entries: Vec<(u64, u32)>,
    /// Names, each ended by a newline.
    names: String,
}

impl Kallsyms {
    /// Reads `/proc/kallsyms` (about 50 ms).
    ///
    /// # Errors
    /// If it cannot be read, and `PermissionDenied` if the kernel hides the addresses from us (`kptr_restrict`).
    pub fn load() -> io::Result<Self> {
        Self::read(BufReader::with_capacity(1 << 16, File::open("/proc/kallsyms")?))
    }

    /// Reads lines of the form `ffffffff81000000 T name [module]`.
    fn read(mut input: impl BufRead) -> io::Result<Self> {
        let mut table = Self::default();
        let mut line = Vec::new();
        while input.read_until(b'\n', &mut line)? > 0 {
            if let Some((address, name)) = std::str::from_utf8(&line).ok().and_then(parse) {
                table.push(address, name)?;
            }
            line.clear();
        }
        if table.entries.iter().all(|(address, _)| *address == 0) {
            let reason = "the kernel hides its addresses (kernel.kptr_restrict, CAP_SYSLOG)";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
        }
        table.entries.shrink_to_fit();
        table.names.shrink_to_fit();
        // Stable: of several names at one address the first in the file is shown.
        table.entries.sort_by_key(|(address, _)| *address);
        table.entries.dedup_by_key(|(address, _)| *address);
        Ok(table)
    }

    fn push(&mut self, address: u64, name: &str) -> io::Result<()> {
        let start = u32::try_from(self.names.len()).map_err(io::Error::other)?;
        self.names.push_str(name);
        self.names.push('\n');
        self.entries.push((address, start));
        Ok(())
    }

    /// Name of the kernel function at this address, and how many bytes into it the address is.
    pub fn lookup(&self, address: u64) -> Option<(String, u64)> {
        let after = self.entries.partition_point(|(start, _)| *start <= address);
        let (start, name) = *self.entries.get(after.checked_sub(1)?)?;
        let offset = address - start;
        let name = self.names.get(name as usize..)?.split('\n').next()?;
        (offset < MAX_OFFSET).then(|| (name.to_owned(), offset))
    }

    /// Functions.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

fn parse(line: &str) -> Option<(u64, &str)> {
    let mut words = line.split_ascii_whitespace();
    let address = u64::from_str_radix(words.next()?, 16).ok()?;
    let is_code = matches!(words.next()?, "t" | "T" | "w" | "W");
    is_code.then_some((address, words.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
ffffffff81001000 T do_futex
ffffffff81002000 t futex_wait
ffffffff81002000 W futex_alias
ffffffff82000000 D jiffies
ffffffffc0000000 t ext4_sync_file\t[ext4]
broken
";

    #[test]
    fn names_the_function_and_the_offset() {
        let table = Kallsyms::read(TEXT.as_bytes()).unwrap();
        let name = |address| table.lookup(address);
        assert_eq!(name(0xffff_ffff_8100_1010), Some(("do_futex".into(), 16)));
        assert_eq!(name(0xffff_ffff_8100_2000), Some(("futex_wait".into(), 0)));
        assert_eq!(name(0xffff_ffff_c000_0001), Some(("ext4_sync_file".into(), 1)));
        assert_eq!(name(0xffff_ffff_8100_0fff), None);
        assert_eq!(name(0xffff_ffff_8f00_0000), None);
    }

    #[test]
    fn says_when_addresses_are_hidden() {
        let hidden = "0000000000000000 T do_futex\n";
        let error = Kallsyms::read(hidden.as_bytes()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }
}
