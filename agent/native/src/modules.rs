//! The ELF files that are mapped into a process, with the data that unwinding and symbol resolution need from
//! each file.

use std::cell::{OnceCell, RefCell};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::confined::InlinedCalls;
use crate::error::{Error, Result};
use crate::maps::{self, Mapping};
use crate::memory;
use crate::symbols::{self, Bytes, DebugSearch, ElfFile, SymbolTable, limits, memory_budget, opening};

/// The path of the vDSO, which contains code of the kernel, in /proc/PID/maps.
const VDSO: &str = "[vdso]";

/// One ELF file mapped into the process.
pub struct Module {
    /// The path as the process sees it, or `[vdso]`.
    pub path: String,
    /// The base name of the path, for display. All frames in this module share it.
    pub name: Arc<str>,
    /// True if the file was removed or replaced after it was mapped.
    pub deleted: bool,
    /// The first executable address.
    pub start: u64,
    /// The end of the last executable mapping.
    pub end: u64,
    /// The difference between an address in the process and the ELF virtual address.
    pub bias: u64,
    /// The file, if it could be opened.
    pub elf: Option<Arc<ElfFile>>,
    /// The symbols of the file.
    pub symbols: SymbolTable,
    /// The reason why the file, or a better source of its symbols, could not be used.
    pub problem: Option<String>,
    /// The reader of inlined calls, started on first use; None if there is no debug information.
    inlines: OnceCell<Option<RefCell<InlinedCalls>>>,
    inode: u64,
}

impl Module {
    /// Return the number of bytes of the module's files that are held in memory.
    fn memory_bytes(&self) -> u64 {
        self.elf.as_ref().map_or(0, |elf| elf.memory_bytes()) + self.symbols.memory_bytes()
    }

    /// Convert an address in the process to the ELF virtual address.
    pub fn svma(&self, address: u64) -> u64 {
        address.wrapping_sub(self.bias)
    }

    /// Return up to `size` bytes of code before an address in the process.
    pub fn code_before(&self, address: u64, size: usize) -> Option<Bytes> {
        let elf = self.elf.as_ref()?;
        let svma = self.svma(address);
        let last = svma.wrapping_sub(1);
        let segment = elf.load_segments().iter().find(|one| one.executable && one.svma().contains(&last))?;
        let offset = svma - segment.vaddr;
        let size = offset.min(size as u64);
        elf.read(segment.offset.checked_add(offset - size)?, size)
    }

    /// Return true if this is the vDSO and contains this code at an address in the process.
    pub fn is_vdso_code(&self, address: u64, code: &[u8]) -> bool {
        self.path == VDSO
            && self
                .code_before(address.wrapping_add(code.len() as u64), code.len())
                .is_some_and(|found| *found == *code)
    }

    /// Return the functions inlined at an ELF virtual address, innermost first. The first call opens the
    /// debug information in a confined child.
    fn inlined(&self, svma: u64, search: &DebugSearch) -> Vec<String> {
        let inlines = self.inlines.get_or_init(|| {
            let (own, path) = (self.elf.as_ref()?, Path::new(&self.path));
            let dwarf = symbols::find_dwarf(own, path, search)?;
            let opened_as = match &search.root {
                Some(root) if Arc::ptr_eq(own, &dwarf) => opening::in_root(root, path),
                _ => dwarf.path().to_owned(),
            };
            InlinedCalls::new(&search.reader, &dwarf, &opened_as).ok().map(RefCell::new)
        });
        inlines.as_ref().map(|inlines| inlines.borrow_mut().frames(svma)).unwrap_or_default()
    }

    /// Return true if the address is in the program's entry function (`_start`), which has no caller. The
    /// unwind information of old programs does not mark this function as having no caller.
    pub fn is_entry(&self, address: u64) -> bool {
        const ENTRY_BYTES: u64 = 48;
        self.elf.as_ref().is_some_and(|elf| {
            let entry = elf.entry();
            entry != 0 && (entry..entry.saturating_add(ENTRY_BYTES)).contains(&self.svma(address))
        })
    }
}

/// All modules of a process. The caller refreshes the list when it finds an address outside all of them.
pub struct Modules {
    pid: u32,
    search: DebugSearch,
    mappings: Vec<Mapping>,
    files: Vec<Module>,
}

impl Modules {
    /// Open the files that are currently mapped.
    pub fn new(pid: u32, search: DebugSearch) -> Result<Self> {
        let mut modules = Self { pid, search, mappings: Vec::new(), files: Vec::new() };
        modules.refresh()?;
        Ok(modules)
    }

    /// Create modules from a fixed list of files without a process, to fuzz the unwinder.
    pub fn fixed(files: Vec<(Arc<ElfFile>, u64)>) -> Self {
        let modules = files
            .into_iter()
            .map(|(elf, bias)| {
                let code = elf.load_segments().iter().filter(|segment| segment.executable);
                let start = code.clone().map(|segment| segment.vaddr).min().unwrap_or(0).wrapping_add(bias);
                let end = code.map(|segment| segment.vaddr.saturating_add(segment.memsz)).max().unwrap_or(0);
                let path = elf.path().display().to_string();
                let symbols = symbols::load_own(&elf);
                let end = end.wrapping_add(bias);
                let elf = Some(elf);
                Module {
                    name: base_name(&path),
                    path,
                    deleted: false,
                    start,
                    end,
                    bias,
                    elf,
                    symbols,
                    problem: None,
                    inlines: OnceCell::new(),
                    inode: 0,
                }
            })
            .collect();
        Self { pid: 0, search: DebugSearch::default(), mappings: Vec::new(), files: modules }
    }

    /// Read the maps again, and return true if the modules changed. Modules that are still mapped are kept;
    /// if the process has exited, all are kept.
    pub fn refresh(&mut self) -> Result<bool> {
        let mappings = maps::executable(self.pid)?;
        if mappings == self.mappings || mappings.is_empty() {
            return Ok(false);
        }
        let mut known = std::mem::take(&mut self.files);
        for group in mappings.chunk_by(|a, b| a.path == b.path && a.inode == b.inode) {
            let (start, end) = (group[0].start, group[group.len() - 1].end);
            let same = |module: &Module| {
                module.start == start
                    && module.end == end
                    && module.inode == group[0].inode
                    && module.path == group[0].path
            };
            let module = match known.iter().position(same) {
                Some(index) => known.swap_remove(index),
                None => self.open(group, start, end),
            };
            self.files.push(module);
        }
        self.mappings = mappings;
        Ok(true)
    }

    /// Return the index of the module that covers the address.
    pub fn at(&self, address: u64) -> Option<usize> {
        let index = self.files.partition_point(|module| module.start <= address).checked_sub(1)?;
        (address < self.files[index].end).then_some(index)
    }

    /// Return all modules, lowest address first.
    pub fn all(&self) -> &[Module] {
        &self.files
    }

    /// Return the functions inlined at an ELF virtual address of a module, innermost first.
    pub fn inlined(&self, index: usize, svma: u64) -> Vec<String> {
        self.files[index].inlined(svma, &self.search)
    }

    fn open(&self, group: &[Mapping], start: u64, end: u64) -> Module {
        let first = &group[0];
        let mut module = Module {
            path: first.path.clone(),
            name: base_name(&first.path),
            deleted: first.deleted,
            start,
            end,
            bias: 0,
            elf: None,
            symbols: SymbolTable::default(),
            problem: None,
            inlines: OnceCell::new(),
            inode: first.inode,
        };
        if let Some(problem) = self.over_budget(&first.path) {
            module.problem = Some(problem);
            return module;
        }
        match open_elf(self.pid, first) {
            Ok(elf) => match bias(&elf, first) {
                Some(bias) => {
                    module.bias = bias;
                    module.symbols = symbols::load(&elf, Path::new(&first.path), &self.search);
                    module.problem.clone_from(&module.symbols.problem);
                    module.elf = Some(elf);
                }
                None => {
                    module.problem = Some(format!("{}: no segment of the file is mapped", first.path));
                }
            },
            Err(problem) => module.problem = Some(problem.to_string()),
        }
        module
    }
}

impl Modules {
    /// Return the reason why no more files may be read, if a limit has been reached.
    fn over_budget(&self, path: &str) -> Option<String> {
        if self.files.len() >= limits::MODULES {
            return Some(format!("{path}: not read: the process maps more than {} files", limits::MODULES));
        }
        if let Some(problem) = memory_budget::problem() {
            return Some(format!("{path}: {problem}"));
        }
        let memory_bytes: u64 = self.files.iter().map(Module::memory_bytes).sum();
        (memory_bytes >= limits::PROCESS_BYTES)
            .then(|| format!("{path}: not read: the files before it take {memory_bytes} bytes of memory"))
    }
}

fn base_name(path: &str) -> Arc<str> {
    path.rsplit('/').next().unwrap_or(path).into()
}

/// Return the load address minus the link address, computed from the segment that belongs to the mapping.
pub fn bias(elf: &ElfFile, mapping: &Mapping) -> Option<u64> {
    let page = !0xfff_u64;
    let segment = elf.load_segments().iter().find(|segment| {
        segment.executable
            && segment.offset & page <= mapping.offset
            && mapping.offset < segment.offset.saturating_add(segment.filesz)
    })?;
    Some(mapping.start.wrapping_sub(mapping.offset).wrapping_sub(segment.vaddr.wrapping_sub(segment.offset)))
}

/// Open the mapped file.
///
/// /proc/PID/map_files refers to the file that is mapped, in any mount namespace and even after an upgrade
/// has replaced it. Without the required capability (CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE), the file is
/// opened by its path, and accepted only if it has the inode of the mapping.
pub fn open_elf(pid: u32, mapping: &Mapping) -> Result<Arc<ElfFile>> {
    let display = PathBuf::from(&mapping.path);
    if mapping.path == VDSO {
        let image = memory::read(pid, mapping.start, (mapping.end - mapping.start) as usize)?;
        let elf = ElfFile::from_bytes(image, &display).map_err(|error| elf_error(&error))?;
        return Ok(elf);
    }
    let mapped = PathBuf::from(format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end));
    let by_path = PathBuf::from(format!("/proc/{pid}/root{}", mapping.path));
    let file = opening::regular(&mapped).or_else(|_| open_same_inode(&by_path, mapping))?;
    let elf = ElfFile::from_file(file, &display).map_err(|error| elf_error(&error))?;
    Ok(elf)
}

fn elf_error(error: &symbols::ElfError) -> Error {
    Error::new(crate::error::Kind::Elf, error.to_string())
}

fn open_same_inode(path: &Path, mapping: &Mapping) -> Result<File> {
    let failed = |error: std::io::Error| {
        Error::from_os(&error, &format!("opening {}", mapping.path), crate::error::Kind::Elf)
    };
    let file = opening::regular(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.ino() != mapping.inode {
        let detail = format!(
            "{} was replaced on disk, and reading the mapped file needs CAP_CHECKPOINT_RESTORE",
            mapping.path
        );
        return Err(Error::new(crate::error::Kind::Rights, detail));
    }
    Ok(file)
}
