//! Reads the names of the kernel's functions.

use std::fs::File;
use std::io::{self, BufRead, BufReader};

/// Kernel symbols have no size. An address more than this number of bytes after the nearest preceding symbol
/// has no name.
const MAX_OFFSET: u64 = 64 << 10;

/// The functions of the running kernel and its modules. The table takes about 3 MB, so it is loaded only if
/// needed.
#[derive(Debug, Default)]
pub struct Kallsyms {
    /// Address of each function and offset of its name in `names`.
    entries: Vec<(u64, u32)>,
    /// The names, each terminated by a newline.
    names: String,
}

impl Kallsyms {
    /// Read `/proc/kallsyms` (about 50 ms).
    ///
    /// # Errors
    /// Returns an error if the file cannot be read: `PermissionDenied` if the kernel hides the addresses
    /// (`kptr_restrict`).
    pub fn load() -> io::Result<Self> {
        Self::read(BufReader::with_capacity(1 << 16, File::open("/proc/kallsyms")?))
    }

    /// Parse lines of the form `ffffffff81000000 T name [module]`.
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
        // The sort is stable: if several names have the same address, the first one in the file stays first.
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

    /// Return the name of the kernel function at this address, and the offset of the address in it.
    pub fn lookup(&self, address: u64) -> Option<(String, u64)> {
        let after = self.entries.partition_point(|(start, _)| *start <= address);
        let (start, name) = *self.entries.get(after.checked_sub(1)?)?;
        let offset = address - start;
        let name = self.names.get(name as usize..)?.split('\n').next()?;
        (offset < MAX_OFFSET).then(|| (name.to_owned(), offset))
    }

    /// Return the number of functions.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Return true if there are no functions.
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
    fn returns_the_function_and_the_offset() {
        let table = Kallsyms::read(TEXT.as_bytes()).unwrap();
        let name = |address| table.lookup(address);
        assert_eq!(name(0xffff_ffff_8100_1010), Some(("do_futex".into(), 16)));
        assert_eq!(name(0xffff_ffff_8100_2000), Some(("futex_wait".into(), 0)));
        assert_eq!(name(0xffff_ffff_c000_0001), Some(("ext4_sync_file".into(), 1)));
        assert_eq!(name(0xffff_ffff_8100_0fff), None);
        assert_eq!(name(0xffff_ffff_8f00_0000), None);
    }

    #[test]
    fn reports_hidden_addresses() {
        let hidden = "0000000000000000 T do_futex\n";
        let error = Kallsyms::read(hidden.as_bytes()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }
}
