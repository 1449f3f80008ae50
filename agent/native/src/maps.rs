//! Reads the executable mappings from /proc/PID/maps.

use std::fs::{self, File};
use std::io::Read as _;

use crate::error::{Error, Kind, Result};
use crate::symbols::limits;

/// One executable mapping of a file or of the vDSO.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// The first address.
    pub start: u64,
    /// The end address (exclusive).
    pub end: u64,
    /// The file offset of `start`.
    pub offset: u64,
    /// The inode of the file; 0 for the vDSO.
    pub inode: u64,
    /// The path as the process sees it (without " (deleted)"), or `[vdso]`.
    pub path: String,
    /// True if the file was removed or replaced after it was mapped.
    pub deleted: bool,
}

/// List the executable mappings of files and of the vDSO in process `pid`, lowest address first.
///
/// Errors: `Gone`, `Rights` (reading another user's maps needs CAP_SYS_PTRACE).
pub fn executable(pid: u32) -> Result<Vec<Mapping>> {
    let path = format!("/proc/{pid}/maps");
    let mut text = Vec::new();
    // No real server reaches this limit. Mappings beyond it are ignored.
    File::open(&path)
        .and_then(|file| file.take(limits::MAPS_BYTES).read_to_end(&mut text))
        .map_err(|error| Error::from_os(&error, &format!("reading {path}"), Kind::Internal))?;
    Ok(String::from_utf8_lossy(&text).lines().filter_map(parse_executable).collect())
}

/// Return the first executable mapping of the program itself, found by the inode of /proc/PID/exe.
///
/// Errors: `Gone`, `Rights`, or `Elf` if no mapping has that inode.
pub fn main_executable(pid: u32) -> Result<Mapping> {
    let link = format!("/proc/{pid}/exe");
    let metadata = fs::metadata(&link)
        .map_err(|error| Error::from_os(&error, &format!("reading {link}"), Kind::Internal))?;
    let inode = std::os::unix::fs::MetadataExt::ino(&metadata);
    executable(pid)?
        .into_iter()
        .find(|mapping| mapping.inode == inode)
        .ok_or_else(|| Error::new(Kind::Elf, format!("process {pid} does not map its own executable")))
}

/// Parse `start-end perms offset dev inode path`; return None unless it is an executable mapping of a file or of
/// the vDSO.
fn parse_executable(line: &str) -> Option<Mapping> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    if fields.next()?.as_bytes().get(2) != Some(&b'x') {
        return None;
    }
    let offset = fields.next()?;
    let inode = fields.nth(1)?;
    let path = fields.next()?.trim_start();
    if !path.starts_with('/') && path != "[vdso]" {
        return None;
    }
    let (path, deleted) = match path.strip_suffix(" (deleted)") {
        Some(path) => (path, true),
        None => (path, false),
    };
    Some(Mapping {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        offset: u64::from_str_radix(offset, 16).ok()?,
        inode: inode.parse().ok()?,
        path: path.to_owned(),
        deleted,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_executable_mappings_of_files_and_the_vdso() {
        let line =
            "55e0c000-55e0d000 r-xp 00002000 fe:00 123                        /usr/sbin/my sqld (deleted)";
        let mapping = parse_executable(line).expect("executable");
        assert_eq!(mapping.path, "/usr/sbin/my sqld");
        assert!(mapping.deleted);
        assert_eq!(
            (mapping.start, mapping.end, mapping.offset, mapping.inode),
            (0x55e0_c000, 0x55e0_d000, 0x2000, 123)
        );
        assert!(
            parse_executable("7ffd0000-7ffd2000 r-xp 00000000 00:00 0                  [vdso]").is_some()
        );
    }

    #[test]
    fn ignores_data_mappings_and_malformed_lines() {
        assert!(parse_executable("55e0c000-55e0d000 rw-p 00002000 fe:00 123   /usr/sbin/mysqld").is_none());
        assert!(parse_executable("7f0000000000-7f0000001000 r-xp 00000000 00:00 0 ").is_none());
        assert!(parse_executable("garbage").is_none());
        assert!(parse_executable("").is_none());
    }
}
