//! Call frame information (CFI) of one file: the rules that find the caller of a frame.

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, EhFrameHdr, Encoding, EndianSlice, Evaluation,
    EvaluationResult, FrameDescriptionEntry, LittleEndian, Location, ParsedEhFrameHdr, Register,
    RegisterRule, UnwindContext, UnwindExpression, UnwindSection as _, Value,
};

use crate::arch::{Arch, NATIVE, SignalFrame};
use crate::symbols::memory_budget::CountedBytes;
use crate::symbols::{Bytes, ElfFile, limits};

type Slice<'data> = EndianSlice<'data, LittleEndian>;
type Expression = UnwindExpression<usize>;

/// Number of unwind steps charged for the evaluation of one expression, whether or not it terminates.
const EXPRESSION_STEPS: u64 = 50;

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

/// Where the caller's value of a register is saved.
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

/// How to compute the canonical frame address (CFA).
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
            Self::Uncovered | Self::FramePointer if frame.bp.is_none() => Some(Caller::NeedsFramePointer),
            Self::FramePointer if frame.bp == Some(0) => Some(Caller::Top),
            Self::Uncovered | Self::FramePointer => by_frame_pointer(arch, frame, memory),
            Self::Described(row) if row.needs_link_register(arch, frame) => Some(Caller::NeedsLinkRegister),
            Self::Described(row) => match row.caller(table?, frame, memory, steps) {
                Some(caller) => Some(caller),
                None if memory.beyond => None,
                None if frame.bp.is_none() => Some(Caller::NeedsFramePointer),
                None if frame.bp == Some(0) => Some(Caller::Top),
                None => by_frame_pointer(arch, frame, memory),
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

/// Return the frame that a signal interrupted; `frame` is that of the code to which the handler returns.
pub fn interrupted<F: Fn(u64) -> Option<u64>>(
    arch: &Arch,
    signal: &SignalFrame,
    frame: Frame,
    memory: &mut Memory<F>,
) -> Option<Caller> {
    let [ip, sp, bp, lr] =
        [signal.ip, signal.sp, signal.bp, signal.lr].map(|offset| memory.word(frame.sp.checked_add(offset)?));
    validated(arch, frame, Frame { ip: ip?, sp: sp?, bp: Some(bp?), lr: Some(lr?), innermost: true })
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
    validated(arch, frame, Frame { ip, sp, bp, lr: None, innermost: false })
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
        let mut evaluate = |expression| table.evaluate(expression, self.encoding, frame, steps);
        let canonical = match self.canonical {
            Canonical::Offset(register, offset) => {
                frame.register(register, arch)?.checked_add_signed(offset)?
            }
            Canonical::Expression(expression) => evaluate(expression)?,
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
            Saved::In(register) => frame.register(register, arch).or(frame.bp),
            Saved::AtExpression(one) => evaluate(one).and_then(|at| (memory.read)(at)).or(frame.bp),
            Saved::Expression(one) => evaluate(one).or(frame.bp),
        };
        let ip = match self.return_address {
            Saved::At(offset) => memory.word(canonical.checked_add_signed(offset)?)?,
            Saved::Value(offset) => canonical.checked_add_signed(offset)?,
            Saved::In(register) => frame.register(register, arch)?,
            Saved::AtExpression(one) => memory.word(evaluate(one)?)?,
            Saved::Expression(one) => evaluate(one)?,
            Saved::Same | Saved::Nowhere if arch.has_link_register => frame.lr?,
            Saved::Same | Saved::Nowhere => memory.word(canonical.checked_sub(8)?)?,
        };
        validated(arch, frame, Frame { ip, sp: canonical, bp, lr: None, innermost: false })
    }
}

fn saved(rule: Option<&RegisterRule<usize>>) -> Saved {
    match rule {
        Some(RegisterRule::SameValue) => Saved::Same,
        Some(RegisterRule::Offset(offset)) => Saved::At(*offset),
        Some(RegisterRule::ValOffset(offset)) => Saved::Value(*offset),
        Some(RegisterRule::Register(register)) => Saved::In(*register),
        Some(RegisterRule::Expression(expression)) => Saved::AtExpression(*expression),
        Some(RegisterRule::ValExpression(expression)) => Saved::Expression(*expression),
        _ => Saved::Nowhere,
    }
}

/// The unwind table of one file.
pub struct UnwindTable {
    arch: &'static Arch,
    frames: Bytes,
    header: Option<Bytes>,
    /// For a file without `.eh_frame_hdr`: (start address of the entry's function, offset of the entry),
    /// sorted.
    index: (Vec<(u64, usize)>, CountedBytes),
    bases: BaseAddresses,
    context: UnwindContext<usize>,
}

impl UnwindTable {
    /// Create an empty table, for a file without unwind information.
    pub fn none() -> Self {
        Self {
            arch: NATIVE,
            frames: Bytes::from(Vec::new()),
            header: None,
            index: (Vec::new(), CountedBytes::new(0)),
            bases: BaseAddresses::default(),
            context: UnwindContext::new(),
        }
    }

    /// Read the unwind sections of a file. If there is no `.eh_frame_hdr`, the entries are indexed, which
    /// takes a few ms for a server.
    pub fn of(elf: &ElfFile) -> Self {
        let mut table = Self::none();
        table.arch = Arch::named(elf.machine()).unwrap_or(NATIVE);
        let Some(frames) = elf.section(".eh_frame") else { return table };
        let mut bases = BaseAddresses::default().set_eh_frame(frames.svma.start);
        for (name, set) in [
            (".eh_frame_hdr", BaseAddresses::set_eh_frame_hdr as fn(BaseAddresses, u64) -> BaseAddresses),
            (".text", BaseAddresses::set_text),
            (".got", BaseAddresses::set_got),
        ] {
            if let Some(start) = elf.section_start(name) {
                bases = set(bases, start);
            }
        }
        table.bases = bases;
        table.header = elf.section(".eh_frame_hdr").map(|header| header.data);
        if table.header.is_none() {
            table.index = index(&frames.data, table.arch, &table.bases);
        }
        table.frames = frames.data;
        table
    }

    /// Return the unwind rule for an ELF virtual address.
    pub fn rule(&mut self, svma: u64, steps: &mut u64) -> Rule {
        let Self { arch, frames, header, index, bases, context } = self;
        let section = section(frames, arch);
        let Some(entry) = entry(&section, header.as_deref(), &index.0, bases, svma) else {
            return Rule::FramePointer;
        };
        let size = entry.entry_len().saturating_add(entry.cie().entry_len());
        *steps = steps.saturating_sub(size as u64);
        if size > limits::UNWIND_ENTRY {
            return Rule::FramePointer;
        }
        let encoding = entry.cie().encoding();
        let Ok(row) = entry.unwind_info_for_address(&section, bases, context, svma) else {
            return Rule::Uncovered;
        };
        let return_address = row.register(arch.return_address);
        let is_root = match return_address {
            None => !arch.has_link_register, // a link register without a rule still has the caller's value
            Some(RegisterRule::Undefined) => true,
            Some(_) => false,
        };
        if is_root {
            return Rule::Root { undefined: return_address.is_some() };
        }
        let canonical = match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => Canonical::Offset(*register, *offset),
            CfaRule::Expression(expression) => Canonical::Expression(*expression),
        };
        let frame_pointer = saved(row.register(arch.frame_pointer).as_ref());
        let return_address = saved(return_address.as_ref());
        match (canonical, frame_pointer, return_address) {
            (Canonical::Offset(register, 16), Saved::At(-16), Saved::At(-8))
                if register == arch.frame_pointer =>
            {
                Rule::FramePointer
            }
            _ => Rule::Described(Row { canonical, frame_pointer, return_address, encoding }),
        }
    }

    /// Return the start of the function, or of the part of a function, that covers an ELF virtual address.
    pub fn function_start(&self, svma: u64) -> Option<u64> {
        let section = section(&self.frames, self.arch);
        let entry = entry(&section, self.header.as_deref(), &self.index.0, &self.bases, svma)?;
        entry.contains(svma).then(|| entry.initial_address())
    }

    /// Evaluate an expression over the registers of a frame; return `None` if it fails or takes too many
    /// steps.
    fn evaluate(
        &self,
        expression: Expression,
        encoding: Encoding,
        frame: Frame,
        steps: &mut u64,
    ) -> Option<u64> {
        *steps = steps.saturating_sub(EXPRESSION_STEPS);
        let code = expression.get(&section(&self.frames, self.arch)).ok()?;
        let mut evaluation = Evaluation::new(code.0, encoding);
        evaluation.set_max_iterations(limits::EXPRESSION);
        let mut result = evaluation.evaluate();
        loop {
            match result {
                Ok(EvaluationResult::Complete) => break,
                Ok(EvaluationResult::RequiresRegister { register, .. }) => {
                    result =
                        evaluation.resume_with_register(Value::Generic(frame.register(register, self.arch)?));
                }
                Err(gimli::Error::TooManyIterations) => {
                    *steps = steps.saturating_sub(limits::EXPRESSION.into());
                    return None;
                }
                _ => return None,
            }
        }
        match evaluation.as_result().last()?.location {
            Location::Address { address } => Some(address),
            _ => None,
        }
    }
}

fn section<'frames>(frames: &'frames Bytes, arch: &Arch) -> EhFrame<Slice<'frames>> {
    let mut section = EhFrame::new(frames, LittleEndian);
    section.set_vendor(arch.vendor);
    section.set_address_size(8);
    section
}

/// Find the entry (FDE) of the last function that begins at or before the address.
fn entry<'data>(
    section: &EhFrame<Slice<'data>>,
    header: Option<&'data [u8]>,
    index: &[(u64, usize)],
    bases: &BaseAddresses,
    svma: u64,
) -> Option<FrameDescriptionEntry<Slice<'data>>> {
    let offset = if let Some(header) = header {
        let header: ParsedEhFrameHdr<_> = EhFrameHdr::new(header, LittleEndian).parse(bases, 8).ok()?;
        let table = header.table()?;
        table.pointer_to_offset(table.lookup(svma, bases).ok()?).ok()?
    } else {
        let after = index.partition_point(|(start, _)| *start <= svma);
        gimli::EhFrameOffset(index.get(after.checked_sub(1)?)?.1)
    };
    section.fde_from_offset(bases, offset, EhFrame::cie_from_offset).ok()
}

/// List the start address of each entry's function with the offset of the entry, in ascending order. The list
/// ends at the first malformed entry.
fn index(frames: &Bytes, arch: &Arch, bases: &BaseAddresses) -> (Vec<(u64, usize)>, CountedBytes) {
    let section = section(frames, arch);
    let mut entries = section.entries(bases);
    let mut found = Vec::new();
    let mut last = None;
    while let Ok(Some(entry)) = entries.next()
        && found.len() < limits::UNWIND_ENTRIES
    {
        let CieOrFde::Fde(entry) = entry else { continue };
        // Most entries share the CIE of the previous entry, so it is parsed only once.
        let parsed = entry.parse(|section, bases, offset| {
            if let Some((at, known)) = &last
                && *at == offset
            {
                return Ok(gimli::CommonInformationEntry::clone(known));
            }
            let parsed = section.cie_from_offset(bases, offset)?;
            last = Some((offset, parsed.clone()));
            Ok(parsed)
        });
        let Ok(parsed) = parsed else { break };
        found.push((parsed.initial_address(), parsed.offset()));
    }
    found.sort_unstable();
    let counted = CountedBytes::new(size_of_val(&found[..]));
    (found, counted)
}
