//! The functions that the compiler inlined at an address, from DWARF.

use std::convert::Infallible;

use addr2line::Context;
use gimli::{Dwarf, EndianReader, LittleEndian, SectionId};

use super::bytes::Bytes;
use super::demangle::demangle;
use super::elf::ElfFile;

type Reader = EndianReader<LittleEndian, Bytes>;

/// No real chain of inlined calls is longer.
const MAX_FRAMES: usize = 256;

/// The DWARF of one module, read as far as it was asked for. Not thread-safe.
pub struct Inlines {
    context: Context<Reader>,
}

impl Inlines {
    /// Reads the list of compilation units of a file with `.debug_info`: the module itself or its debug file.
    /// `shared` is the file that `dwz` moved what several debug files share to.
    ///
    /// Costs 0.2 s and 60 MB for a server with 300 MB of debug information, more if its sections are compressed.
    ///
    /// # Errors
    /// In words, if there is no DWARF or it is damaged.
    pub fn new(elf: &ElfFile, shared: Option<&ElfFile>) -> Result<Self, String> {
        if !elf.has_debug_info() {
            return Err("no debug information".to_owned());
        }
        let mut dwarf = load(elf);
        if let Some(shared) = shared {
            dwarf.set_sup(load(shared));
        }
        let context = Context::from_dwarf(dwarf).map_err(|error| error.to_string())?;
        Ok(Self { context })
    }

    /// The demangled names of the inlined calls at this ELF virtual address, innermost first, without the real
    /// function that they were inlined into. Empty where nothing was inlined or the DWARF is damaged. GCC gives
    /// functions that were inlined everywhere no mangled name: these come without their class or namespace.
    ///
    /// The first address asked for in a compilation unit costs 1 to 3 ms, the next ones some 10 µs.
    pub fn frames(&self, svma: u64) -> Vec<String> {
        let Ok(mut frames) = self.context.find_frames(svma).skip_all_loads() else {
            return Vec::new();
        };
        let mut names = Vec::new();
        while let Ok(Some(frame)) = frames.next()
            && names.len() < MAX_FRAMES
        {
            let name = frame.function.as_ref().and_then(|f| f.raw_name().ok());
            names.push(name.map_or_else(|| "??".to_owned(), |name| demangle(&name)));
        }
        names.pop();
        names
    }
}

fn load(elf: &ElfFile) -> Dwarf<Reader> {
    let section = |id: SectionId| -> Result<Reader, Infallible> {
        let data = elf.section(id.name()).map(|section| section.data);
        let data = data.unwrap_or_else(|| Bytes::from(Vec::new()));
        Ok(EndianReader::new(data, LittleEndian))
    };
    let Ok(dwarf) = Dwarf::load(section);
    dwarf
}
