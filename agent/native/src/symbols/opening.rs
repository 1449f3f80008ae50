//! Opens files that may belong to another user. All untrusted files are opened here.
//!
//! A file is opened with `O_PATH` first, which has no side effect on a device or FIFO. It is reopened for
//! reading only if it is a regular file. Below `/proc/PID/root`, symbolic links are resolved within that
//! root.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{self, Error};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use nix::fcntl::{AtFlags, OFlag, readlinkat};
use nix::sys::stat::{Mode, fstatat};

use super::limits;

/// Maximum number of symbolic links in one path, the same as the kernel's limit.
const LINKS: usize = 40;

/// Open a regular file for reading.
///
/// # Errors
/// The error of the kernel, or an error without `errno` if the file is not a regular file or is too large.
pub fn regular(path: &Path) -> io::Result<File> {
    reopen(locate(path)?.as_fd())
}

/// Return the device and inode of any kind of file, without opening it for reading.
///
/// # Errors
/// The error of the kernel.
pub fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = fstatat(locate(path)?, "", AtFlags::AT_EMPTY_PATH)?;
    Ok((found.st_dev, found.st_ino))
}

/// Open a file with `O_PATH`, following symbolic links.
fn locate(path: &Path) -> io::Result<OwnedFd> {
    match split_root(path) {
        Some((root, below)) => {
            let root = open_at(None, root.as_os_str(), OFlag::O_PATH | OFlag::O_DIRECTORY)?;
            beneath(root.as_fd(), below)
        }
        None => open_at(None, path.as_os_str(), OFlag::O_PATH),
    }
}

/// Reopen a descriptor (`O_PATH` or other) for reading if it refers to a regular file.
///
/// # Errors
/// The errors of [`regular`].
pub fn reopen(found: BorrowedFd<'_>) -> io::Result<File> {
    let file = File::from(found.try_clone_to_owned()?);
    check(&file)?;
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    Ok(File::from(open_at(None, OsStr::new(&path), flags)?))
}

/// Return the size of a regular file; reject other kinds of files, and sizes above the limit.
///
/// # Errors
/// An error with the reason, without `errno`.
pub fn check(file: &File) -> io::Result<u64> {
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(Error::other("not a regular file"));
    }
    if meta.len() > limits::FILE_SIZE {
        return Err(Error::other(format!("larger than {} bytes", limits::FILE_SIZE)));
    }
    Ok(meta.len())
}

/// Resolve `link`, the path in the `.gnu_debugaltlink` section of the file at `path`. If that file is below
/// `/proc/PID/root`, so is the result, even if `link` is absolute.
pub fn follow(path: &Path, link: &Path) -> PathBuf {
    match (split_root(path), link.strip_prefix("/")) {
        (Some((root, _)), Ok(below)) => root.join(below),
        _ => path.parent().unwrap_or(Path::new("/")).join(link),
    }
}

/// Return the path below a process's root directory (`/proc/PID/root`) of a file that the process maps.
/// `mapped` is its path in /proc/PID/maps, which includes the directory of a chroot.
pub fn in_root(root: &Path, mapped: &Path) -> PathBuf {
    let chroot = std::fs::read_link(root).unwrap_or_default();
    let below = mapped.strip_prefix(&chroot).unwrap_or(mapped);
    root.join(below.strip_prefix("/").unwrap_or(below))
}

/// Split a path into `/proc/PID/root` and the path below it.
fn split_root(path: &Path) -> Option<(PathBuf, &Path)> {
    let mut parts = path.components();
    let start: Vec<Component<'_>> = parts.by_ref().take(4).collect();
    let [Component::RootDir, proc, pid, root] = start[..] else { return None };
    let of_process = pid.as_os_str() == "self" || pid.as_os_str().as_bytes().iter().all(u8::is_ascii_digit);
    let rooted = proc.as_os_str() == "proc" && of_process && root.as_os_str() == "root";
    rooted.then(|| (start.iter().collect(), parts.as_path()))
}

/// Resolve a path as a process with this root would, never leaving the root.
fn beneath(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    match openat2(root, path) {
        // ENOSYS: Linux before 5.6. EPERM: a seccomp filter that forbids openat2.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
            step_by_step(root, path)
        }
        found => found,
    }
}

fn openat2(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: open_how has only integer fields, for which zero is valid.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (libc::O_PATH | libc::O_CLOEXEC).cast_unsigned().into();
    how.resolve = libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_MAGICLINKS;
    // SAFETY: `path` is NUL-terminated, `how` has the size passed, and both outlive the call.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_openat2,
            root.as_raw_fd(),
            path.as_ptr(),
            &raw const how,
            size_of::<libc::open_how>(),
        )
    };
    let fd = i32::try_from(fd).map_err(Error::other)?;
    if fd < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: the kernel just returned this descriptor; nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Resolve a path like openat2 with `RESOLVE_IN_ROOT`: open each component without following links, and
/// resolve links in user space.
fn step_by_step(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let mut folders: Vec<OwnedFd> = vec![root.try_clone_to_owned()?];
    let mut open: Vec<Vec<u8>> = names(path.as_os_str().as_bytes());
    let mut links = 0;
    while let Some(name) = open.pop() {
        let name = OsStr::from_bytes(&name);
        if name == ".." {
            folders.truncate(folders.len().saturating_sub(1).max(1));
            continue;
        }
        let folder = folders.last().ok_or_else(|| Error::from_raw_os_error(libc::ENOENT))?;
        let found = open_at(Some(folder.as_fd()), name, OFlag::O_PATH | OFlag::O_NOFOLLOW)?;
        let kind = fstatat(&found, "", AtFlags::AT_EMPTY_PATH)?.st_mode & libc::S_IFMT;
        if kind != libc::S_IFLNK {
            folders.push(found);
            continue;
        }
        links += 1;
        let target = readlinkat(&found, "")?;
        // The target of a magic link of /proc is not a path, so it could lead anywhere.
        if links > LINKS || is_proc(found.as_fd())? {
            return Err(Error::from_raw_os_error(libc::ELOOP));
        }
        if target.as_bytes().starts_with(b"/") {
            folders.truncate(1);
        }
        open.extend(names(target.as_bytes()));
    }
    folders.pop().ok_or_else(|| Error::from_raw_os_error(libc::ENOENT))
}

/// Return the components of a path in reverse order.
fn names(path: &[u8]) -> Vec<Vec<u8>> {
    let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    parts.rev().map(<[u8]>::to_vec).collect()
}

fn is_proc(found: BorrowedFd<'_>) -> io::Result<bool> {
    let kind = nix::sys::statfs::fstatfs(found)?.filesystem_type();
    Ok(kind == nix::sys::statfs::PROC_SUPER_MAGIC)
}

fn open_at(folder: Option<BorrowedFd<'_>>, name: &OsStr, flags: OFlag) -> io::Result<OwnedFd> {
    let flags = flags | OFlag::O_CLOEXEC;
    let here = nix::fcntl::AT_FDCWD;
    Ok(nix::fcntl::openat(folder.unwrap_or(here), name, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("innoscope-opening-{name}-{}", std::process::id()));
            fs::create_dir_all(path.join("root/usr/lib")).unwrap();
            fs::write(path.join("outside"), "outside").unwrap();
            fs::write(path.join("root/usr/lib/file"), "inside").unwrap();
            symlink("usr/lib", path.join("root/lib")).unwrap();
            symlink("/usr/lib/file", path.join("root/absolute")).unwrap();
            symlink("../../../../outside", path.join("root/up")).unwrap();
            symlink("loop", path.join("root/loop")).unwrap();
            symlink("/proc/self/root/etc/passwd", path.join("root/magic")).unwrap();
            Self(path)
        }

        fn root(&self) -> OwnedFd {
            open_at(None, self.0.join("root").as_os_str(), OFlag::O_PATH).unwrap()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            // Errors are ignored: a leftover directory in the system's temporary directory does no harm.
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    type Resolve = fn(BorrowedFd<'_>, &Path) -> io::Result<OwnedFd>;

    #[test]
    fn no_link_leads_out_of_a_root() {
        for (name, resolve) in [("openat2", beneath as Resolve), ("steps", step_by_step as Resolve)] {
            let folder = Folder::new(name);
            let root = folder.root();
            for path in ["usr/lib/file", "lib/file", "/lib/../lib/file", "absolute", "../../lib/file"] {
                let found = resolve(root.as_fd(), Path::new(path)).unwrap();
                let text = io::read_to_string(reopen(found.as_fd()).unwrap()).unwrap();
                assert_eq!(text, "inside", "{name} {path}");
            }
            for (path, errno) in [
                ("up", libc::ENOENT),
                ("loop", libc::ELOOP),
                ("magic", libc::ENOENT),
                ("lib/file/x", libc::ENOTDIR),
            ] {
                let error = resolve(root.as_fd(), Path::new(path)).unwrap_err();
                assert_eq!(error.raw_os_error(), Some(errno), "{name} {path}");
            }
        }
    }

    #[test]
    fn devices_pipes_and_folders_are_not_opened() {
        let folder = Folder::new("kinds");
        let pipe = folder.0.join("pipe");
        nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        for path in [Path::new("/dev/null"), Path::new("/proc/self/root/dev/null"), &pipe, &folder.0] {
            assert_eq!(regular(path).unwrap_err().to_string(), "not a regular file", "{path:?}");
        }
    }

    #[test]
    fn a_link_in_a_process_file_stays_below_the_process_root() {
        let followed = |path, link| follow(Path::new(path), Path::new(link)).to_str().unwrap().to_owned();
        assert_eq!(followed("/proc/12/root/usr/bin/d", "/usr/lib/x"), "/proc/12/root/usr/lib/x");
        assert_eq!(followed("/proc/12/root/usr/bin/d", "../../../x"), "/proc/12/root/usr/bin/../../../x");
        assert_eq!(followed("/usr/bin/d", "/usr/lib/x"), "/usr/lib/x");
        assert_eq!(followed("/usr/bin/d", "x"), "/usr/bin/x");
    }

    #[test]
    fn the_chroot_folder_is_removed_from_the_path_of_a_mapped_file() {
        let folder = Folder::new("chroot");
        let root = folder.0.join("link");
        symlink(folder.0.join("root"), &root).unwrap();
        assert_eq!(in_root(&root, &folder.0.join("root/usr/bin/d")), root.join("usr/bin/d"));
        assert_eq!(in_root(&root, Path::new("/usr/bin/d")), root.join("usr/bin/d"));
    }

    #[test]
    fn process_roots_are_recognized() {
        let split = |path| split_root(Path::new(path)).map(|(_, below)| below.to_str().unwrap());
        assert_eq!(split("/proc/12/root/usr/lib"), Some("usr/lib"));
        assert_eq!(split("/proc/self/root"), Some(""));
        assert_eq!(split("/proc/12/exe"), None);
        assert_eq!(split("/usr/lib/proc/12/root"), None);
    }
}
