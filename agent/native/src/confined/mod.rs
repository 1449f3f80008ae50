//! Reads debug information in a confined child process.
//!
//! DWARF is large, its parsers are complex, and the file may belong to the observed process. Therefore a child
//! process receives the open file, drops all other privileges ([`jail`]), and responds with lines of text, which
//! are checked here. Its memory is released when it exits, its CPU time is limited, and if the file is
//! truncated, SIGBUS kills only the child.

mod child;
pub mod jail;

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::layout::{Kind, Member};
use crate::symbols::ElfFile;

pub use child::serve;
pub use jail::become_program;

/// The child's descriptor of the file that it reads.
const FILE: RawFd = 3;
/// The child's descriptor of the shared debug file, if there is one.
const SHARED: RawFd = 4;
/// Maximum total size of the requests to one child, in bytes.
const MAX_REQUEST: u64 = 4 << 20;
/// Maximum size of one response in bytes; enough for 256 names of inlined calls.
const MAX_RESPONSE: usize = 1 << 20;
/// Maximum number of names in one response.
const MAX_NAMES: usize = 256;
/// Maximum length of a name or reason in characters.
const MAX_TEXT: usize = 4 << 10;
/// Maximum number of offsets of one member, which limits the pointers in its path.
const MAX_OFFSETS: usize = 32;
/// Timeout for the first response, and for each response about a member. A response may require reading 300 MB
/// from disk on a busy host.
const FIRST_TIMEOUT: Duration = Duration::from_secs(90);
/// Timeout for each later response about inlined calls, which takes a few ms.
const LATER_TIMEOUT: Duration = Duration::from_secs(5);

/// The command that starts the child: a program that calls [`serve`], and its arguments.
pub type ChildCommand = Vec<OsString>;

/// A running child. Dropping this kills the child.
#[derive(Debug)]
pub struct Reader {
    child: Child,
    requests: Option<ChildStdin>,
    responses: ChildStdout,
    /// Bytes that have been received but not yet processed.
    pending: Vec<u8>,
    timeout: Duration,
}

impl Drop for Reader {
    fn drop(&mut self) {
        // `drop` cannot return an error. A child that has already exited does not cause one.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Reader {
    /// Start a child that reads this file, and the shared debug file if there is one.
    fn start(start: &ChildCommand, elf: &ElfFile, shared: Option<&ElfFile>, what: &str) -> io::Result<Self> {
        let unusable = || io::Error::other("not an open file, so it cannot be passed to a child process");
        let file = duplicate_above_child_files(elf.file().ok_or_else(unusable)?)?;
        let shared = shared.and_then(ElfFile::file).map(duplicate_above_child_files).transpose()?;
        let (program, arguments) = start.split_first().ok_or_else(|| io::Error::other("no program given"))?;
        let mut command = Command::new(program);
        command.args(arguments).env_clear().current_dir("/");
        if let Some(path) = env::var_os("PYTHONPATH") {
            command.env("PYTHONPATH", path); // the child must run the same installation of Innoscope
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let (file_fd, shared_fd) = (file.as_raw_fd(), shared.as_ref().map(AsRawFd::as_raw_fd));
        // SAFETY: the closure calls only dup2, which is async-signal-safe. The descriptors stay open until
        // spawn() returns.
        unsafe {
            command.pre_exec(move || {
                if libc::dup2(file_fd, FILE) < 0
                    || shared_fd.is_some_and(|shared_fd| libc::dup2(shared_fd, SHARED) < 0)
                {
                    return Err(io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let mut child = command.spawn()?;
        let (requests, responses) = (child.stdin.take(), child.stdout.take().ok_or_else(unusable)?);
        let mut reader = Self { child, requests, responses, pending: Vec::new(), timeout: FIRST_TIMEOUT };
        reader.send(&format!("{what} {}", if shared_fd.is_some() { "shared" } else { "alone" }))?;
        Ok(reader)
    }

    fn send(&mut self, line: &str) -> io::Result<()> {
        let requests = self.requests.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        writeln!(requests, "{line}")
    }

    /// Receive the next line; fail if it does not arrive within the timeout.
    fn receive(&mut self) -> io::Result<String> {
        let deadline = Instant::now() + self.timeout;
        loop {
            if let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                let rest = self.pending.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.pending, rest);
                line.pop();
                self.timeout = LATER_TIMEOUT;
                return String::from_utf8(line).map_err(io::Error::other);
            }
            if self.pending.len() > MAX_RESPONSE {
                return Err(io::Error::other("the response is too long"));
            }
            wait_readable(self.responses.as_fd(), deadline)?;
            let mut buffer = [0; 16 << 10];
            let read = self.responses.read(&mut buffer)?;
            if read == 0 {
                return Err(io::Error::other(self.describe_end()));
            }
            self.pending.extend_from_slice(&buffer[..read]);
        }
    }

    /// Describe how the child ended.
    fn describe_end(&mut self) -> String {
        match self.child.wait() {
            Ok(status) if status.signal() == Some(libc::SIGXCPU) => {
                "reading it exceeds its limit of CPU time, not read".to_owned()
            }
            Ok(status) if status.signal() == Some(libc::SIGABRT) => {
                "reading it failed, perhaps at its limit of memory, not read".to_owned()
            }
            Ok(status) if status.signal() == Some(libc::SIGKILL) => {
                "the process that reads it was killed: it is the first one to be killed if memory is short"
                    .to_owned()
            }
            Ok(status) => format!("the process that reads it exited early ({status})"),
            Err(error) => format!("the process that reads it exited early ({error})"),
        }
    }
}

/// Duplicate a descriptor to a number above those that the child uses.
fn duplicate_above_child_files(file: &File) -> io::Result<OwnedFd> {
    use std::os::fd::FromRawFd as _;
    let copy = fcntl(file.as_fd(), FcntlArg::F_DUPFD_CLOEXEC(10))?;
    // SAFETY: the kernel just returned this descriptor; nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

fn wait_readable(responses: BorrowedFd<'_>, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    let timeout = PollTimeout::try_from(left.as_millis().max(1)).unwrap_or(PollTimeout::MAX);
    match poll(&mut [PollFd::new(responses, PollFlags::POLLIN)], timeout) {
        Ok(0) if left.is_zero() => Err(io::Error::from(io::ErrorKind::TimedOut)),
        Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Return the limits for a request about this file. Only the CLI requests inlined calls, for a server that its
/// user has chosen, so these requests have the higher limits.
fn limits(file: &File, what: &str) -> io::Result<jail::Limits> {
    let untrusted = what == "members" && file.metadata()?.uid() != 0;
    Ok(if untrusted { jail::UNTRUSTED } else { jail::TRUSTED })
}

/// Find members in the DWARF of this file by running [`crate::layout::members`] in a child.
///
/// # Errors
/// Returns the reason, with the file's name.
pub fn members(
    start: &ChildCommand,
    elf: &ElfFile,
    paths: &[String],
) -> Result<Vec<Result<Member, String>>, String> {
    let failed = |error: io::Error| format!("{}: debug information: {error}", elf.path().display());
    let send_all = |mut reader: Reader| {
        for path in paths {
            reader.send(&path.replace('\n', " "))?;
        }
        reader.requests = None; // closing the pipe ends the request
        let mut responses = Vec::with_capacity(paths.len());
        for _ in paths {
            let line = reader.receive()?;
            reader.timeout = FIRST_TIMEOUT;
            responses.push(parse_response(&line).ok_or_else(|| io::Error::other("malformed response"))?);
        }
        Ok(responses)
    };
    Reader::start(start, elf, None, "members").and_then(send_all).map_err(failed)
}

/// Finds inlined calls in one file. Its child process runs until this is dropped.
#[derive(Debug)]
pub struct InlinedCalls {
    reader: Option<Reader>,
}

impl InlinedCalls {
    /// Start a child for the file with the DWARF, and for its shared debug file, if any. `opened_as` is the
    /// path of the file with the DWARF, below `/proc/PID/root` if the file belongs to a process.
    ///
    /// # Errors
    /// Returns the reason, with the file's name.
    pub fn new(start: &ChildCommand, elf: &ElfFile, opened_as: &Path) -> Result<Self, String> {
        let shared = elf.shared_debug_file(opened_as);
        let reader = Reader::start(start, elf, shared.as_deref(), "inlines")
            .map_err(|error| format!("{}: debug information: {error}", elf.path().display()))?;
        Ok(Self { reader: Some(reader) })
    }

    /// Return the inlined functions at an ELF virtual address, innermost first. If the child has
    /// failed, the list is always empty.
    pub fn frames(&mut self, svma: u64) -> Vec<String> {
        let Some(reader) = &mut self.reader else { return Vec::new() };
        let names =
            reader.send(&format!("{svma:x}")).and_then(|()| reader.receive()).map(|line| decode_names(&line));
        names.unwrap_or_else(|_| {
            self.reader = None;
            Vec::new()
        })
    }
}

fn encode_response(response: &Result<Member, String>) -> String {
    match response {
        Ok(Member { offsets, size, kind, stride, count }) => {
            let offsets: Vec<String> = offsets.iter().map(u64::to_string).collect();
            format!("found\t{}\t{size}\t{}\t{stride}\t{count}", offsets.join(","), kind.as_str())
        }
        Err(reason) => format!("missing\t{}", printable(reason)),
    }
}

fn parse_response(line: &str) -> Option<Result<Member, String>> {
    let fields: Vec<&str> = line.split('\t').collect();
    match fields[..] {
        ["missing", reason] => Some(Err(printable(reason))),
        ["found", offsets, size, kind, stride, count] => {
            let offsets: Vec<u64> = offsets.split(',').map(|one| one.parse().ok()).collect::<Option<_>>()?;
            let kind = Kind::from_word(kind)?;
            let [size, stride, count] = [size, stride, count].map(|one| one.parse().ok());
            let member = Member { offsets, size: size?, kind, stride: stride?, count: count? };
            (member.offsets.len() <= MAX_OFFSETS).then_some(Ok(member))
        }
        _ => None,
    }
}

fn encode_names(names: &[String]) -> String {
    names.iter().map(|name| printable(name)).collect::<Vec<_>>().join("\t")
}

fn decode_names(line: &str) -> Vec<String> {
    line.split('\t').filter(|name| !name.is_empty()).take(MAX_NAMES).map(printable).collect()
}

/// Remove control characters and limit the length.
fn printable(text: &str) -> String {
    text.chars().filter(|one| !one.is_control()).take(MAX_TEXT).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_survive_the_round_trip() {
        let member = Member { offsets: vec![8, 0, 16], size: 8, kind: Kind::Pointer, stride: 64, count: 3 };
        for response in [Ok(member), Err("no such member".to_owned())] {
            assert_eq!(parse_response(&encode_response(&response)), Some(response));
        }
        assert_eq!(decode_names(&encode_names(&["a b".to_owned(), "c".to_owned()])), ["a b", "c"]);
        assert!(decode_names("").is_empty());
    }

    #[test]
    fn malformed_responses_are_refused() {
        let long = format!("found\t{}\t8\tsigned\t0\t1", vec!["1"; 40].join(","));
        for line in ["", "found", "found\t-1\t8\tsigned\t0\t1", "found\t1\t8\tpoem\t0\t1", &long] {
            assert_eq!(parse_response(line), None, "{line}");
        }
        assert_eq!(parse_response("missing\ta\u{1b}[2J"), Some(Err("a[2J".to_owned())));
    }
}
