//! The confined child: reads questions from its standard input, answers on its standard output, and ends.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::FromRawFd as _;
use std::path::Path;
use std::sync::Arc;

use super::{FILE, MAX_QUESTION, SHARED, answer_line, cpu_limit, jail, name_line};
use crate::layout;
use crate::symbols::{ElfFile, Inlines};

/// Serve one parent. The first line says whether there is a shared debug file, and what is asked: `members`, then
/// one path a line, or `inlines`, then one hexadecimal address a line, each answered by a line.
///
/// # Errors
/// If the process cannot be confined, or the parent went away.
pub fn serve() -> io::Result<()> {
    // SAFETY: the parent has put these descriptors there, and nothing else here owns them.
    let file = unsafe { File::from_raw_fd(FILE) };
    let mut questions = BufReader::new(io::stdin().lock().take(MAX_QUESTION));
    let mut first = String::new();
    questions.read_line(&mut first)?;
    let (what, shared) = first.trim_end().split_once(' ').unwrap_or_default();
    // SAFETY: as above; the parent says that it is there.
    let shared = (shared == "shared").then(|| unsafe { File::from_raw_fd(SHARED) });
    let cpu_s = if what == "members" { cpu_limit(&file)? } else { jail::CPU_S };
    jail::enter(cpu_s)?;
    let elf = ElfFile::map(&file, Path::new("debug file")).map_err(io::Error::other)?;
    let shared = shared.and_then(|file| ElfFile::map(&file, Path::new("shared debug file")).ok());
    match what {
        "members" => members(&elf, questions),
        "inlines" => inlines(&elf, shared.as_deref(), questions),
        _ => Err(io::Error::other("no such question")),
    }
}

fn members(elf: &Arc<ElfFile>, questions: impl io::BufRead) -> io::Result<()> {
    let paths = questions.lines().collect::<io::Result<Vec<_>>>()?;
    let mut out = io::stdout().lock();
    for answer in layout::members(elf, &paths) {
        writeln!(out, "{}", answer_line(&answer))?;
    }
    out.flush()
}

fn inlines(elf: &Arc<ElfFile>, shared: Option<&ElfFile>, questions: impl io::BufRead) -> io::Result<()> {
    let inlines = Inlines::new(elf, shared).map_err(io::Error::other)?;
    let mut out = io::stdout().lock();
    for line in questions.lines() {
        let address = u64::from_str_radix(&line?, 16).map_err(io::Error::other)?;
        writeln!(out, "{}", name_line(&inlines.frames(address)))?;
        out.flush()?;
    }
    Ok(())
}
