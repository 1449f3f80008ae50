//! Finds the separate debug file of an ELF file.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use super::elf::ElfFile;
use super::pack;
use crate::confined::ChildCommand;

/// The places to search for debug files.
#[derive(Clone, Debug, Default)]
pub struct DebugSearch {
    /// Directories with the layout of `/usr/lib/debug`, in order of preference.
    pub dirs: Vec<PathBuf>,
    /// Debug files that have already been downloaded, by build-id (lower-case hex).
    pub fetched: HashMap<String, PathBuf>,
    /// The root directory of the observed process (`/proc/PID/root`), which differs from ours if the process is
    /// in another mount namespace or a chroot. It is searched after our own file system.
    pub root: Option<PathBuf>,
    /// The directory with symbol packs; if the path is empty, no packs are used.
    pub packs: PathBuf,
    /// The command of the child that reads debug information; if the command is empty, no child is started.
    pub reader: ChildCommand,
}

impl DebugSearch {
    /// Create the search for the files of a process. It includes the process's root directory and this host's
    /// packs.
    pub fn of_process(pid: u32, dirs: Vec<PathBuf>, fetched: HashMap<String, PathBuf>) -> Self {
        let root = Some(format!("/proc/{pid}/root").into());
        Self { dirs, fetched, root, packs: pack::folder(), reader: ChildCommand::new() }
    }
}

/// Find the path of the separate debug file of `elf`.
///
/// `opened_as` is the path of `elf` as the observed process sees it. The search tries these paths in order. It
/// tries each path of 1 and 2 first in our own file system and then below [`DebugSearch::root`].
///
/// 1. `<dir>/.build-id/xx/yyyy.debug`
/// 2. the name in `.gnu_debuglink`: in the directory of `elf`, in its `.debug` subdirectory, and in
///    `<dir>/<folder>`, where `<folder>` is the directory of `elf`
/// 3. the files that are already downloaded
///
/// A file is accepted only if it has the same build-id or, if one of the two files has no build-id, if it has the
/// CRC32 in `.gnu_debuglink`.
pub fn find(elf: &ElfFile, opened_as: &Path, search: &DebugSearch) -> Option<PathBuf> {
    find_open(elf, opened_as, search, &mut Vec::new()).map(|file| file.path().to_owned())
}

/// Find and open the debug file; see [`find`]. Files that exist but cannot be used are added to `problems`,
/// with the reason.
pub(super) fn find_open(
    elf: &ElfFile,
    opened_as: &Path,
    search: &DebugSearch,
    problems: &mut Vec<String>,
) -> Option<Arc<ElfFile>> {
    let id = elf.build_id();
    let by_id = id.iter().flat_map(|id| by_build_id(id, search));
    let link = elf.debuglink().filter(|(name, _)| is_file_name(name));
    let by_link = link.iter().flat_map(|(name, _)| by_link(name, opened_as, search));
    let criteria = Criteria { elf, id: id.as_deref(), crc: None };
    let linked = Criteria { crc: link.as_ref().map(|(_, crc)| *crc), ..criteria };
    let by_id = by_id.flat_map(|path| on_host_and_in_root(path, search)).map(|path| (path, criteria));
    let by_link = by_link.flat_map(|path| on_host_and_in_root(path, search)).map(|path| (path, linked));
    let fetched = id.as_ref().and_then(|id| search.fetched.get(id)).map(|path| (path.clone(), criteria));
    let before = problems.len();
    for (path, criteria) in by_id.chain(by_link).chain(fetched) {
        match criteria.open(&path) {
            Ok(Some(file)) => {
                problems.truncate(before); // a usable file was found, so other problems do not matter
                return Some(file);
            }
            Ok(None) => {}
            Err(reason) => problems.push(format!("{}: {reason}", path.display())),
        }
    }
    None
}

fn by_build_id(id: &str, search: &DebugSearch) -> impl Iterator<Item = PathBuf> {
    let (folder, file) = id.split_at_checked(2).unwrap_or((id, ""));
    let relative = format!(".build-id/{folder}/{file}.debug");
    search.dirs.iter().map(move |dir| dir.join(&relative))
}

fn by_link(name: &str, opened_as: &Path, search: &DebugSearch) -> impl Iterator<Item = PathBuf> {
    let folder = opened_as.parent().unwrap_or(Path::new("/"));
    let below = folder.strip_prefix("/").unwrap_or(folder);
    let near = [folder.join(name), folder.join(".debug").join(name)];
    let far = search.dirs.iter();
    near.into_iter().chain(far.map(move |dir| dir.join(below).join(name)))
}

/// Return true for a plain file name. The name comes from an untrusted file and must not refer to a file
/// outside the directories.
fn is_file_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None))
}

fn on_host_and_in_root(path: PathBuf, search: &DebugSearch) -> impl Iterator<Item = PathBuf> {
    let relative = path.strip_prefix("/").unwrap_or(&path);
    let in_root = search.root.as_ref().map(|root| root.join(relative));
    [Some(path), in_root].into_iter().flatten()
}

/// The criteria for a debug file.
#[derive(Clone, Copy)]
struct Criteria<'elf> {
    elf: &'elf ElfFile,
    id: Option<&'elf str>,
    crc: Option<u32>,
}

impl Criteria<'_> {
    /// Open a candidate; return `None` if it does not exist or has no additional information.
    fn open(&self, path: &Path) -> Result<Option<Arc<ElfFile>>, String> {
        let file = match ElfFile::open(path) {
            Ok(file) => file,
            Err(error) if matches!(error.errno, Some(libc::ENOENT | libc::ENOTDIR)) => return Ok(None),
            Err(error) => return Err(error.reason),
        };
        if let Some(problem) = file.problem() {
            return Err(problem.to_owned());
        }
        if !file.has_symtab() && !file.has_debug_info() {
            return Err("has neither symbols nor debug info".to_owned());
        }
        if !self.has_more(&file) {
            return Ok(None);
        }
        if self.belongs(&file) {
            Ok(Some(file))
        } else {
            Err("belongs to another build of the file".to_owned())
        }
    }

    /// Return true if `file` has information that `elf` lacks. A link may refer to the file itself or to
    /// another stripped copy.
    fn has_more(&self, file: &ElfFile) -> bool {
        (file.has_symtab() && !self.elf.has_symtab()) || (file.has_debug_info() && !self.elf.has_debug_info())
    }

    fn belongs(&self, file: &ElfFile) -> bool {
        match (self.id, file.build_id(), self.crc) {
            (Some(ours), Some(theirs), _) => ours == theirs,
            (_, _, Some(crc)) => file.crc() == Some(crc),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_must_be_a_plain_name() {
        assert!(is_file_name("mariadbd.debug"));
        for bad in ["", "/etc/passwd", "../x", "a/b", "."] {
            assert!(!is_file_name(bad), "{bad}");
        }
    }

    #[test]
    fn searches_the_host_before_the_root_of_the_process() {
        let search = DebugSearch {
            dirs: vec!["/usr/lib/debug".into()],
            root: Some("/proc/7/root".into()),
            ..DebugSearch::default()
        };
        let paths = by_link("d.debug", Path::new("/usr/sbin/d"), &search);
        let paths: Vec<_> = paths.flat_map(|p| on_host_and_in_root(p, &search)).collect();
        let expected = [
            "/usr/sbin/d.debug",
            "/proc/7/root/usr/sbin/d.debug",
            "/usr/sbin/.debug/d.debug",
            "/proc/7/root/usr/sbin/.debug/d.debug",
            "/usr/lib/debug/usr/sbin/d.debug",
            "/proc/7/root/usr/lib/debug/usr/sbin/d.debug",
        ];
        assert_eq!(paths, expected.map(PathBuf::from));
    }
}
