//! Call frame information (CFI) of one file: the rules that find the caller of a frame.

mod table;

use gimli::{Encoding, Register, UnwindExpression};

pub use table::UnwindTable;

use crate::arch::{Arch, SignalFrame};

type Expression = UnwindExpression<usize>;

/// The registers of one frame.
#[derive(Debug, Clone, Copy)]
pub struct Frame {
    /// The instruction pointer of the innermost frame, or a return address.
    pub ip: u64,
    /// The stack pointer.
    pub sp: u64,
    /// The frame pointer register, which a function may use for other purposes; None if it is unknown.
    pub bp: Option<u64>,
    /// The link register; None if it is unknown, as in all frames that called another function, or if the
    /// architecture has none.
    pub lr: Option<u64>,
    /// True for the innermost frame and for a frame that a signal interrupted: `ip` is not a return address.
    pub innermost: bool,
    /// True if this frame, or one that it called, was found by the frame pointer because the unwind table could not
    /// be used.
    pub guessed: bool,
}

impl Frame {
    /// Return the address to look up. A return address may already belong to the next function, so the
    /// address inside the preceding call instruction is used.
    pub fn lookup(&self) -> u64 {
        if self.innermost { self.ip } else { self.ip.wrapping_sub(1) }
    }

    fn register(&self, register: Register, arch: &Arch) -> Option<u64> {
        match register {
            _ if register == arch.stack_pointer => Some(self.sp),
            _ if register == arch.frame_pointer => self.bp,
            _ if register == arch.return_address && arch.has_link_register => self.lr,
            _ if register == arch.return_address => Some(self.ip),
            _ => None,
        }
    }
}

/// The caller of a frame.
#[derive(Debug, Clone, Copy)]
pub enum Caller {
    /// The caller's frame.
    At(Frame),
    /// There is no caller: this is the outermost frame.
    Top,
    /// The caller depends on the frame pointer, which is unknown.
    NeedsFramePointer,
    /// The caller depends on the link register, which is unknown.
    NeedsLinkRegister,
}

/// Access to the bytes of a stack.
pub struct Memory<F> {
    /// Read the word at an address, or return `None` if it was not copied.
    pub read: F,
    /// True if a word outside the copied bytes was needed.
    pub beyond: bool,
}

impl<F: Fn(u64) -> Option<u64>> Memory<F> {
    fn word(&mut self, address: u64) -> Option<u64> {
        let word = (self.read)(address);
        self.beyond |= word.is_none();
        word
    }
}

/// The location of the caller's value of a register.
#[derive(Debug, Clone, Copy)]
enum Saved {
    /// The table does not describe the register.
    Nowhere,
    /// The register still has the caller's value.
    Same,
    /// The value is in memory, at this offset from the canonical frame address (CFA).
    At(i64),
    /// The value is the CFA plus this offset.
    Value(i64),
    /// The value is in another register.
    In(Register),
    /// The value is in memory, at the address that this expression returns.
    AtExpression(Expression),
    /// The value is the result of this expression.
    Expression(Expression),
}

/// The rule for computing the canonical frame address (CFA).
#[derive(Debug, Clone, Copy)]
enum Canonical {
    Offset(Register, i64),
    Expression(Expression),
}

/// The unwind rule for one address, which finds the caller of a frame.
#[derive(Debug, Clone, Copy)]
pub enum Rule {
    /// The function has no caller.
    Root {
        /// True if the file marks the return address as undefined; false if it has no rule for the return
        /// address.
        undefined: bool,
    },
    /// The function has an entry, but no row covers the address. The innermost frame is then treated as if
    /// its prologue had not run yet, and other frames as if they had set up the frame pointer.
    Uncovered,
    /// Follow the frame pointer.
    FramePointer,
    /// The table's entry is too large. Follow the frame pointer, which is a guess.
    TooLarge,
    /// Follow this row of the unwind table.
    Described(Row),
}

/// A row of an unwind table.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    canonical: Canonical,
    frame_pointer: Saved,
    return_address: Saved,
    encoding: Encoding,
}

impl Rule {
    /// Return true if the file marks the function as having no caller.
    pub fn is_undefined(self) -> bool {
        matches!(self, Self::Root { undefined: true })
    }

    /// Return the caller, or `None` if it cannot be found.
    pub fn caller<F: Fn(u64) -> Option<u64>>(
        self,
        arch: &Arch,
        table: Option<&UnwindTable>,
        frame: Frame,
        memory: &mut Memory<F>,
        steps: &mut u64,
    ) -> Option<Caller> {
        match self {
            Self::Root { .. } => Some(Caller::Top),
            Self::Uncovered if frame.innermost => before_prologue(arch, frame, memory),
            Self::Uncovered | Self::FramePointer | Self::TooLarge if frame.bp.is_none() => {
                Some(Caller::NeedsFramePointer)
            }
            Self::FramePointer | Self::TooLarge if frame.bp == Some(0) => Some(Caller::Top),
            Self::Uncovered | Self::FramePointer => by_frame_pointer(arch, frame, memory),
            Self::TooLarge => by_frame_pointer(arch, Frame { guessed: true, ..frame }, memory),
            Self::Described(row) if row.needs_link_register(arch, frame) => Some(Caller::NeedsLinkRegister),
            Self::Described(row) => match row.caller(table?, frame, memory, steps) {
                Some(caller) => Some(caller),
                None if memory.beyond => None,
                None if frame.bp.is_none() => Some(Caller::NeedsFramePointer),
                None if frame.bp == Some(0) => Some(Caller::Top),
                None => by_frame_pointer(arch, Frame { guessed: true, ..frame }, memory),
            },
        }
    }
}

/// Return the caller of a function that has not changed the stack pointer yet.
fn before_prologue<F: Fn(u64) -> Option<u64>>(
    arch: &Arch,
    frame: Frame,
    memory: &mut Memory<F>,
) -> Option<Caller> {
    if !arch.has_link_register {
        return advance(arch, frame, frame.sp.checked_add(8)?, frame.bp, memory);
    }
    let Some(ip) = frame.lr else { return Some(Caller::NeedsLinkRegister) };
    validated(arch, frame, Frame { ip, lr: None, innermost: false, ..frame })
}

/// Return the frame that a signal interrupted; `frame` is the frame of the code to which the handler returns.
pub fn interrupted<F: Fn(u64) -> Option<u64>>(
    arch: &Arch,
    signal: &SignalFrame,
    frame: Frame,
    memory: &mut Memory<F>,
) -> Option<Caller> {
    let [ip, sp, bp, lr] =
        [signal.ip, signal.sp, signal.bp, signal.lr].map(|offset| memory.word(frame.sp.checked_add(offset)?));
    validated(arch, frame, Frame { ip: ip?, sp: sp?, bp: Some(bp?), lr: Some(lr?), innermost: true, ..frame })
}

fn by_frame_pointer<F: Fn(u64) -> Option<u64>>(
    arch: &Arch,
    frame: Frame,
    memory: &mut Memory<F>,
) -> Option<Caller> {
    let sp = frame.bp?.checked_add(16).filter(|sp| *sp > frame.sp)?;
    let bp = memory.word(frame.bp?)?;
    advance(arch, frame, sp, Some(bp), memory)
}

/// Build the caller's frame, with the return address in the word below `sp`.
fn advance<F: Fn(u64) -> Option<u64>>(
    arch: &Arch,
    frame: Frame,
    sp: u64,
    bp: Option<u64>,
    memory: &mut Memory<F>,
) -> Option<Caller> {
    let ip = memory.word(sp.checked_sub(8)?)?;
    validated(arch, frame, Frame { ip, sp, bp, lr: None, innermost: false, ..frame })
}

fn validated(arch: &Arch, frame: Frame, caller: Frame) -> Option<Caller> {
    let caller = Frame { ip: arch.strip(caller.ip), ..caller };
    if caller.ip == 0 {
        return Some(Caller::Top);
    }
    let is_unchanged = caller.sp == frame.sp && caller.ip == frame.ip;
    let backwards = !frame.innermost && caller.sp < frame.sp;
    (!is_unchanged && !backwards).then_some(Caller::At(caller))
}

impl Row {
    /// Return true if the return address is still in the link register, whose value is unknown.
    fn needs_link_register(self, arch: &Arch, frame: Frame) -> bool {
        let is_in_register = match self.return_address {
            Saved::Same | Saved::Nowhere => true,
            Saved::In(register) => register == arch.return_address,
            _ => false,
        };
        arch.has_link_register && is_in_register && frame.innermost && frame.lr.is_none()
    }

    fn caller<F: Fn(u64) -> Option<u64>>(
        self,
        table: &UnwindTable,
        frame: Frame,
        memory: &mut Memory<F>,
        steps: &mut u64,
    ) -> Option<Caller> {
        let arch = table.arch;
        let mut evaluate = |expression, memory: &mut Memory<F>| {
            table.evaluate(expression, self.encoding, frame, memory, steps)
        };
        let canonical = match self.canonical {
            Canonical::Offset(register, offset) => {
                frame.register(register, arch)?.checked_add_signed(offset)?
            }
            Canonical::Expression(expression) => evaluate(expression, memory)?,
        };
        let bp = match self.frame_pointer {
            Saved::Nowhere | Saved::Same => frame.bp,
            Saved::At(offset) => {
                let at = canonical.checked_add_signed(offset)?;
                match (memory.read)(at) {
                    Some(bp) => Some(bp),
                    // Some epilogues have already popped the frame pointer, although the table still
                    // describes it as saved. Its slot is then below `sp`, where the copy begins, and the
                    // register holds the caller's value.
                    None if frame.innermost && at < frame.sp => frame.bp,
                    None => Some(memory.word(at)?),
                }
            }
            Saved::Value(offset) => Some(canonical.checked_add_signed(offset)?),
            Saved::In(register) => frame.register(register, arch),
            Saved::AtExpression(one) => evaluate(one, memory).and_then(|at| (memory.read)(at)),
            Saved::Expression(one) => evaluate(one, memory),
        };
        let ip = match self.return_address {
            Saved::At(offset) => memory.word(canonical.checked_add_signed(offset)?)?,
            Saved::Value(offset) => canonical.checked_add_signed(offset)?,
            Saved::In(register) => frame.register(register, arch)?,
            Saved::AtExpression(one) => {
                let at = evaluate(one, memory)?;
                memory.word(at)?
            }
            Saved::Expression(one) => evaluate(one, memory)?,
            Saved::Same | Saved::Nowhere if arch.has_link_register => frame.lr?,
            Saved::Same | Saved::Nowhere => memory.word(canonical.checked_sub(8)?)?,
        };
        validated(arch, frame, Frame { ip, sp: canonical, bp, lr: None, innermost: false, ..frame })
    }
}
