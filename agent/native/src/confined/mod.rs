//! Debug information is read by a child that can do nothing else.
//!
//! DWARF is large, its readers are complex, and its file may belong to the observed process. So a child gets
//! the open file, gives up every right ([`jail`]), and answers in lines of text that are checked here. What it needs in
//! memory or time ends with it, as does a SIGBUS when the file is truncated.

mod child;
mod jail;

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::layout::{Kind, Member};
use crate::symbols::ElfFile;

pub use child::serve;
pub use jail::become_program;

/// Descriptors that the child finds its files at.
const FILE: RawFd = 3;
const SHARED: RawFd = 4;
/// Bytes of all questions to one child.
const MAX_QUESTION: u64 = 4 << 20;
/// Bytes of one answer: 256 names of inlined calls.
const MAX_ANSWER: usize = 1 << 20;
/// Names in one answer, and bytes of each name or reason.
const MAX_NAMES: usize = 256;
const MAX_TEXT: usize = 4 << 10;
/// Pointers that one path of members leads through.
const MAX_OFFSETS: usize = 32;
/// For the first answer, which may wait for 300 MB to be read from disk on a busy host; later ones take some ms.
const FIRST: Duration = Duration::from_secs(90);
const LATER: Duration = Duration::from_secs(5);

/// How to start the child: a program that calls [`serve`], with its arguments.
pub type Start = Vec<OsString>;

/// A running child. Ended, at the latest, when it is dropped.
#[derive(Debug)]
pub struct Reader {
    child: Child,
    questions: Option<ChildStdin>,
    answers: ChildStdout,
    /// Of the answer that is being read.
    pending: Vec<u8>,
    patience: Duration,
}

impl Drop for Reader {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Reader {
    /// Start a child over this file.
    fn start(start: &Start, elf: &ElfFile, shared: Option<&ElfFile>, what: &str) -> io::Result<Self> {
        let gone = || io::Error::other("not a file that can be passed on");
        let file = out_of_the_way(elf.file().ok_or_else(gone)?)?;
        let shared = shared.and_then(ElfFile::file).map(out_of_the_way).transpose()?;
        let (program, arguments) = start.split_first().ok_or_else(|| io::Error::other("no program given"))?;
        let mut command = Command::new(program);
        command.args(arguments).env_clear().current_dir("/");
        if let Some(path) = env::var_os("PYTHONPATH") {
            command.env("PYTHONPATH", path); // or the child may be of another Innoscope, or of none
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let (from, also) = (file.as_raw_fd(), shared.as_ref().map(AsRawFd::as_raw_fd));
        // SAFETY: only dup2, which is async-signal-safe, of descriptors that live until the child was started.
        unsafe {
            command.pre_exec(move || {
                if libc::dup2(from, FILE) < 0 || also.is_some_and(|also| libc::dup2(also, SHARED) < 0) {
                    return Err(io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let mut child = command.spawn()?;
        let (questions, answers) = (child.stdin.take(), child.stdout.take().ok_or_else(gone)?);
        let mut reader = Self { child, questions, answers, pending: Vec::new(), patience: FIRST };
        reader.ask(&format!("{what} {}", if also.is_some() { "shared" } else { "alone" }))?;
        Ok(reader)
    }

    fn ask(&mut self, line: &str) -> io::Result<()> {
        let questions = self.questions.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        writeln!(questions, "{line}")
    }

    /// The next line, within the time that an answer may take.
    fn answer(&mut self) -> io::Result<String> {
        let deadline = Instant::now() + self.patience;
        loop {
            if let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                let rest = self.pending.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.pending, rest);
                line.pop();
                self.patience = LATER;
                return String::from_utf8(line).map_err(io::Error::other);
            }
            if self.pending.len() > MAX_ANSWER {
                return Err(io::Error::other("its answer is too long"));
            }
            wait(self.answers.as_fd(), deadline)?;
            let mut buffer = [0; 16 << 10];
            let read = self.answers.read(&mut buffer)?;
            if read == 0 {
                return Err(io::Error::other(self.ended()));
            }
            self.pending.extend_from_slice(&buffer[..read]);
        }
    }

    /// How it ended, in words.
    fn ended(&mut self) -> String {
        match self.child.wait() {
            Ok(status) if status.signal() == Some(libc::SIGXCPU) => {
                "reading it exceeds its limit of CPU time, not read".to_owned()
            }
            Ok(status) => format!("the process that reads it ended early ({status})"),
            Err(error) => format!("the process that reads it ended early ({error})"),
        }
    }
}

/// A copy of the descriptor that is none of those the child gets.
fn out_of_the_way(file: &File) -> io::Result<OwnedFd> {
    use std::os::fd::FromRawFd as _;
    let copy = fcntl(file.as_fd(), FcntlArg::F_DUPFD_CLOEXEC(10))?;
    // SAFETY: the kernel just returned this descriptor; nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

fn wait(answers: BorrowedFd<'_>, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    let timeout = PollTimeout::try_from(left.as_millis().max(1)).unwrap_or(PollTimeout::MAX);
    match poll(&mut [PollFd::new(answers, PollFlags::POLLIN)], timeout) {
        Ok(0) if left.is_zero() => Err(io::Error::from(io::ErrorKind::TimedOut)),
        Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Seconds of CPU time that the types in this file may take.
fn cpu_limit(file: &File) -> io::Result<u64> {
    Ok(if file.metadata()?.uid() == 0 { jail::CPU_S } else { jail::FOREIGN_CPU_S })
}

/// Where members lie, by the DWARF of this file: [`crate::layout::members`] in a child.
///
/// # Errors
/// In words, with the file's name.
pub fn members(
    start: &Start,
    elf: &ElfFile,
    paths: &[String],
) -> Result<Vec<Result<Member, String>>, String> {
    let failed = |error: io::Error| format!("{}: debug information: {error}", elf.path().display());
    let asked = |mut reader: Reader| {
        for path in paths {
            reader.ask(&path.replace('\n', " "))?;
        }
        reader.questions = None; // that was all
        let mut answers = Vec::with_capacity(paths.len());
        for _ in paths {
            let line = reader.answer()?;
            reader.patience = FIRST;
            answers.push(parse_answer(&line).ok_or_else(|| io::Error::other("a malformed answer"))?);
        }
        Ok(answers)
    };
    Reader::start(start, elf, None, "members").and_then(asked).map_err(failed)
}

/// The inlined calls of one file, by a child that lives until this is dropped.
#[derive(Debug)]
pub struct InlinedCalls {
    reader: Option<Reader>,
}

impl InlinedCalls {
    /// Start a child over the file that has the DWARF, and the one that it shares some with.
    ///
    /// # Errors
    /// In words, with the file's name.
    pub fn new(start: &Start, elf: &ElfFile) -> Result<Self, String> {
        let shared = elf.shared_debug_file();
        let reader = Reader::start(start, elf, shared.as_deref(), "inlines")
            .map_err(|error| format!("{}: debug information: {error}", elf.path().display()))?;
        Ok(Self { reader: Some(reader) })
    }

    /// The names at an ELF virtual address, innermost first; none once the child has failed.
    pub fn frames(&mut self, svma: u64) -> Vec<String> {
        let Some(reader) = &mut self.reader else { return Vec::new() };
        let names = reader.ask(&format!("{svma:x}")).and_then(|()| reader.answer()).map(|line| names(&line));
        names.unwrap_or_else(|_| {
            self.reader = None;
            Vec::new()
        })
    }
}

fn answer_line(answer: &Result<Member, String>) -> String {
    match answer {
        Ok(Member { offsets, size, kind, stride, count }) => {
            let offsets: Vec<String> = offsets.iter().map(u64::to_string).collect();
            format!("found\t{}\t{size}\t{}\t{stride}\t{count}", offsets.join(","), kind.as_str())
        }
        Err(reason) => format!("missing\t{}", printable(reason)),
    }
}

fn parse_answer(line: &str) -> Option<Result<Member, String>> {
    let fields: Vec<&str> = line.split('\t').collect();
    match fields[..] {
        ["missing", reason] => Some(Err(printable(reason))),
        ["found", offsets, size, kind, stride, count] => {
            let offsets: Vec<u64> = offsets.split(',').map(|one| one.parse().ok()).collect::<Option<_>>()?;
            let kind = Kind::named(kind)?;
            let [size, stride, count] = [size, stride, count].map(|one| one.parse().ok());
            let member = Member { offsets, size: size?, kind, stride: stride?, count: count? };
            (member.offsets.len() <= MAX_OFFSETS).then_some(Ok(member))
        }
        _ => None,
    }
}

fn name_line(names: &[String]) -> String {
    names.iter().map(|name| printable(name)).collect::<Vec<_>>().join("\t")
}

fn names(line: &str) -> Vec<String> {
    line.split('\t').filter(|name| !name.is_empty()).take(MAX_NAMES).map(printable).collect()
}

/// Without control characters, and cut off where no name is so long.
fn printable(text: &str) -> String {
    text.chars().filter(|one| !one.is_control()).take(MAX_TEXT).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_survive_the_way() {
        let member = Member { offsets: vec![8, 0, 16], size: 8, kind: Kind::Pointer, stride: 64, count: 3 };
        for answer in [Ok(member), Err("no such member".to_owned())] {
            assert_eq!(parse_answer(&answer_line(&answer)), Some(answer));
        }
        assert_eq!(names(&name_line(&["a b".to_owned(), "c".to_owned()])), ["a b", "c"]);
        assert!(names("").is_empty());
    }

    #[test]
    fn what_no_child_of_ours_says_is_refused() {
        let long = format!("found\t{}\t8\tsigned\t0\t1", vec!["1"; 40].join(","));
        for line in ["", "found", "found\t-1\t8\tsigned\t0\t1", "found\t1\t8\tpoem\t0\t1", &long] {
            assert_eq!(parse_answer(line), None, "{line}");
        }
        assert_eq!(parse_answer("missing\ta\u{1b}[2J"), Some(Err("a[2J".to_owned())));
    }
}
