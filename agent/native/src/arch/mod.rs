//! All differences between processor architectures.
//!
//! [`X86_64`] and [`AARCH64`] describe both architectures on every host, so that the tests can unwind recorded
//! stacks of either. Code that runs only on its own architecture is in `host`.

mod aarch64;
mod calls;
mod x86_64;

use std::ops::Range;

use gimli::{Register, Vendor};

pub use aarch64::AARCH64;
pub use calls::Call;
pub use x86_64::X86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::host;
#[cfg(target_arch = "x86_64")]
pub use x86_64::host;

use crate::snapshot::Registers;

/// The architecture for which this library was compiled.
#[cfg(target_arch = "x86_64")]
pub static NATIVE: &Arch = &X86_64;
/// The architecture for which this library was compiled.
#[cfg(target_arch = "aarch64")]
pub static NATIVE: &Arch = &AARCH64;

/// One processor architecture.
pub struct Arch {
    /// The name, as returned by [`crate::symbols::ElfFile::machine`] and `uname -m`.
    pub name: &'static str,
    /// DWARF column number of the return address. If the architecture has a link register, this is the number
    /// of that register.
    pub return_address: Register,
    /// DWARF register number of the stack pointer.
    pub stack_pointer: Register,
    /// DWARF register number of the frame pointer.
    pub frame_pointer: Register,
    /// True if a call stores the return address in a register, not on the stack.
    pub has_link_register: bool,
    /// Selects the vendor's extensions to the unwind instructions.
    pub vendor: Vendor,
    /// Mask of the bits of a return address that belong to the address; the others may hold a signature.
    pub address_bits: u64,
    /// The stack pointer after a return, minus the address that the kernel records for a return probe
    /// (`struct return_instance`, member `stack`).
    pub above_return_probe: u64,
    /// The frame of a signal handler; None if the C library's unwind information describes it.
    pub signal_frame: Option<SignalFrame>,
    /// Maximum length of a call instruction, in bytes.
    pub call_bytes: usize,
    /// Decode the call instruction at the end of the code; the argument is the address after it. Return None
    /// if the code does not end with a call.
    pub decode_call: fn(code: &[u8], address: u64) -> Option<Call>,
    /// Find the stubs for imported functions in the code of a `.plt` section that begins at this address.
    /// None if the unwinder does not need them, because there is no link register.
    pub import_stubs: Option<FindStubs>,
    /// Return true if the kernel cannot emulate the first instruction of this code and has to single-step it
    /// out of line at each hit of a uprobe.
    pub is_stepped: fn(code: &[u8]) -> bool,
    /// The registers in a sample of a perf event.
    pub perf: PerfRegisters,
    /// The value of AUDIT_ARCH_* (include/uapi/linux/audit.h) that a seccomp filter checks.
    pub audit: u32,
    /// glibc's descriptor of a thread.
    pub descriptor: ThreadDescriptor,
}

/// Offsets in `struct pthread`, to which a `pthread_t` points (glibc, nptl/descr.h).
pub struct ThreadDescriptor {
    /// Pointers to the descriptor itself.
    pub own: &'static [usize],
    /// The thread's id.
    pub tid: usize,
    /// The range that contains `tid` if its offset differs in some version of glibc.
    pub tids: Range<usize>,
}

/// Finds the stubs in code that begins at an address.
pub type FindStubs = fn(code: &[u8], start: u64) -> Vec<ImportStub>;

/// Code that jumps to a function in another file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImportStub {
    /// The address of the code.
    pub address: u64,
    /// The address of the word that contains the function's address.
    pub slot: u64,
}

/// The layout of a signal handler's frame. The handler returns to code in the vDSO, which has no unwind
/// information. The kernel saves the interrupted registers at fixed offsets from the stack pointer.
pub struct SignalFrame {
    /// The code to which the handler returns.
    pub code: &'static [u8],
    /// Offset of the saved instruction pointer.
    pub ip: u64,
    /// Offset of the saved stack pointer.
    pub sp: u64,
    /// Offset of the saved frame pointer.
    pub bp: u64,
    /// Offset of the saved link register.
    pub lr: u64,
}

/// Register numbers from perf_regs.h. The kernel writes the registers in ascending order of these numbers.
pub struct PerfRegisters {
    /// The instruction pointer.
    pub ip: u32,
    /// The stack pointer.
    pub sp: u32,
    /// The frame pointer.
    pub bp: u32,
    /// The link register, if there is one.
    pub lr: Option<u32>,
}

impl PerfRegisters {
    fn numbers(&self) -> impl Iterator<Item = u32> {
        [Some(self.ip), Some(self.sp), Some(self.bp), self.lr].into_iter().flatten()
    }

    /// Return the value of `sample_regs_user` that requests these registers.
    pub fn mask(&self) -> u64 {
        self.numbers().map(|number| 1 << number).sum()
    }

    /// Return how many registers a sample contains.
    pub fn count(&self) -> usize {
        self.numbers().count()
    }

    /// Return the registers in a sample; `word` returns the word at an index, or None if it is missing.
    pub fn read(&self, word: impl Fn(usize) -> Option<u64>) -> Option<Registers> {
        let at = |number: u32| word(self.numbers().filter(|other| *other < number).count());
        let lr = match self.lr {
            Some(number) => Some(at(number)?),
            None => None,
        };
        // Before 4.18, the kernel does not save BP on system call entry, and reports -1 (perf_get_regs_user
        // in arch/x86/kernel/perf_regs.c).
        let bp = Some(at(self.bp)?).filter(|bp| *bp != u64::MAX);
        Some(Registers { ip: at(self.ip)?, sp: at(self.sp)?, bp, lr })
    }
}

impl Arch {
    /// Return the architecture with this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        [&X86_64, &AARCH64].into_iter().find(|arch| arch.name == name)
    }

    /// Return the link register that a BPF program reported, or None if there is none.
    pub fn link_register(&self, value: u64) -> Option<u64> {
        self.has_link_register.then_some(value)
    }

    /// Clear the bits of a return address that do not belong to the address, such as a signature.
    pub fn strip(&self, address: u64) -> u64 {
        address & self.address_bits
    }
}
