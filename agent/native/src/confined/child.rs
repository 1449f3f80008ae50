//! The confined child: reads requests from standard input, writes responses to standard output, and exits.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::FromRawFd as _;
use std::path::Path;
use std::sync::Arc;

use super::{FILE, MAX_REQUEST, SHARED, encode_names, encode_response, jail, limits};
use crate::layout;
use crate::symbols::{ElfFile, Inlines};

/// Respond to the parent process's requests on standard input, then return.
///
/// The first line of the input is the type of request, followed by `shared` if the parent passes a shared
/// debug file, or else by `alone`. Each further line is a path (for `members`) or a hexadecimal address (for
/// `inlines`). The response to each of these lines is one line.
///
/// # Errors
/// Returns an error if the process cannot be confined, or if reading a request or writing a response fails.
pub fn serve() -> io::Result<()> {
    // SAFETY: the parent passes an open file at this descriptor, and nothing else in this process owns it.
    let file = unsafe { File::from_raw_fd(FILE) };
    let mut requests = BufReader::new(io::stdin().lock().take(MAX_REQUEST));
    let mut first = String::new();
    requests.read_line(&mut first)?;
    let (what, shared) = first.trim_end().split_once(' ').unwrap_or_default();
    // SAFETY: the request says that the parent passes this descriptor too, and nothing else owns it.
    let shared = (shared == "shared").then(|| unsafe { File::from_raw_fd(SHARED) });
    jail::enter(limits(&file, what)?)?;
    let elf = ElfFile::map(&file, Path::new("debug file")).map_err(io::Error::other)?;
    let shared = shared.and_then(|file| ElfFile::map(&file, Path::new("shared debug file")).ok());
    match what {
        "members" => members(&elf, requests),
        "inlines" => inlines(&elf, shared.as_deref(), requests),
        _ => Err(io::Error::other("unknown request")),
    }
}

fn members(elf: &Arc<ElfFile>, requests: impl io::BufRead) -> io::Result<()> {
    let paths = requests.lines().collect::<io::Result<Vec<_>>>()?;
    let mut out = io::stdout().lock();
    for response in layout::members(elf, &paths) {
        writeln!(out, "{}", encode_response(&response))?;
    }
    out.flush()
}

fn inlines(elf: &Arc<ElfFile>, shared: Option<&ElfFile>, requests: impl io::BufRead) -> io::Result<()> {
    let inlines = Inlines::new(elf, shared).map_err(io::Error::other)?;
    let mut out = io::stdout().lock();
    for line in requests.lines() {
        let address = u64::from_str_radix(&line?, 16).map_err(io::Error::other)?;
        writeln!(out, "{}", encode_names(&inlines.frames(address)))?;
        out.flush()?;
    }
    Ok(())
}
