//! The call frame information of one file: how to get from a frame to its caller.

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, EhFrameHdr, Encoding, EndianSlice, Evaluation,
    EvaluationResult, FrameDescriptionEntry, LittleEndian, Location, ParsedEhFrameHdr, Register,
    RegisterRule, UnwindContext, UnwindExpression, UnwindSection as _, Value, X86_64,
};

use crate::symbols::kept::Kept;
use crate::symbols::{Bytes, ElfFile, limits};

type Slice<'data> = EndianSlice<'data, LittleEndian>;
type Expression = UnwindExpression<usize>;

/// Steps that the evaluation of one expression is charged with; one that never ends is charged with its limit.
const EXPRESSION_STEPS: u64 = 50;

/// The registers of one frame.
#[derive(Debug, Clone, Copy)]
pub struct Frame {
    /// The instruction pointer, or the return address.
    pub ip: u64,
    /// The stack pointer.
    pub sp: u64,
    /// The frame pointer, or what the function uses the register for.
    pub bp: u64,
    /// Whether nothing was called from it.
    pub innermost: bool,
}

impl Frame {
    /// The address to look up: a return address belongs to the call before it.
    pub fn lookup(&self) -> u64 {
        if self.innermost { self.ip } else { self.ip.wrapping_sub(1) }
    }

    fn register(&self, register: Register) -> Option<u64> {
        match register {
            X86_64::RA => Some(self.ip),
            X86_64::RSP => Some(self.sp),
            X86_64::RBP => Some(self.bp),
            _ => None,
        }
    }
}

/// What a frame was called from.
#[derive(Debug, Clone, Copy)]
pub enum Caller {
    /// This frame.
    At(Frame),
    /// Nothing: it is the outermost one.
    Top,
}

/// The bytes of a stack.
pub struct Memory<F> {
    /// Reads a word.
    pub read: F,
    /// Whether a word was wanted that is not among them.
    pub beyond: bool,
}

impl<F: Fn(u64) -> Option<u64>> Memory<F> {
    fn word(&mut self, address: u64) -> Option<u64> {
        let word = (self.read)(address);
        self.beyond |= word.is_none();
        word
    }
}

/// Where a register of the caller is.
#[derive(Debug, Clone, Copy)]
enum Saved {
    /// Nobody says.
    Nowhere,
    /// In the same register.
    Same,
    /// In memory, so far from the canonical frame address.
    At(i64),
    /// It is the canonical frame address plus this.
    Value(i64),
    /// In another register.
    In(Register),
    /// In memory, at the address that the expression gives.
    AtExpression(Expression),
    /// The expression gives it.
    Expression(Expression),
}

/// How the canonical frame address is found.
#[derive(Debug, Clone, Copy)]
enum Canonical {
    Offset(Register, i64),
    Expression(Expression),
}

/// How to get from a frame at one address to its caller.
#[derive(Debug, Clone, Copy)]
pub enum Rule {
    /// There is no caller; marked so, or merely not described.
    Root {
        /// Marked: the return address is undefined.
        undefined: bool,
    },
    /// There is an entry for the function, and none for the address: as after the prologue, or not yet in it.
    Uncovered,
    /// By the frame pointer.
    FramePointer,
    /// As the entry says.
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
    /// Whether the function is marked to have no caller.
    pub fn is_undefined(self) -> bool {
        matches!(self, Self::Root { undefined: true })
    }

    /// The caller; `None` where it cannot be found.
    pub fn caller<F: Fn(u64) -> Option<u64>>(
        self,
        table: Option<&UnwindTable>,
        frame: Frame,
        memory: &mut Memory<F>,
        steps: &mut u64,
    ) -> Option<Caller> {
        match self {
            Self::Root { .. } => Some(Caller::Top),
            Self::Uncovered if frame.innermost => advance(frame, frame.sp.checked_add(8)?, frame.bp, memory),
            Self::FramePointer if frame.bp == 0 => Some(Caller::Top),
            Self::Uncovered | Self::FramePointer => by_frame_pointer(frame, memory),
            Self::Described(row) => match row.caller(table?, frame, memory, steps) {
                Some(caller) => Some(caller),
                None if memory.beyond => None,
                None if frame.bp == 0 => Some(Caller::Top),
                None => by_frame_pointer(frame, memory),
            },
        }
    }
}

fn by_frame_pointer<F: Fn(u64) -> Option<u64>>(frame: Frame, memory: &mut Memory<F>) -> Option<Caller> {
    let sp = frame.bp.checked_add(16).filter(|sp| *sp > frame.sp)?;
    let bp = memory.word(frame.bp)?;
    advance(frame, sp, bp, memory)
}

/// The caller whose return address lies below `sp`.
fn advance<F: Fn(u64) -> Option<u64>>(
    frame: Frame,
    sp: u64,
    bp: u64,
    memory: &mut Memory<F>,
) -> Option<Caller> {
    let ip = memory.word(sp.checked_sub(8)?)?;
    checked(frame, Frame { ip, sp, bp, innermost: false })
}

fn checked(frame: Frame, caller: Frame) -> Option<Caller> {
    if caller.ip == 0 {
        return Some(Caller::Top);
    }
    let stands = caller.sp == frame.sp && caller.ip == frame.ip;
    let backwards = !frame.innermost && caller.sp < frame.sp;
    (!stands && !backwards).then_some(Caller::At(caller))
}

impl Row {
    fn caller<F: Fn(u64) -> Option<u64>>(
        self,
        table: &UnwindTable,
        frame: Frame,
        memory: &mut Memory<F>,
        steps: &mut u64,
    ) -> Option<Caller> {
        let mut evaluate = |expression| table.evaluate(expression, self.encoding, frame, steps);
        let canonical = match self.canonical {
            Canonical::Offset(register, offset) => frame.register(register)?.checked_add_signed(offset)?,
            Canonical::Expression(expression) => evaluate(expression)?,
        };
        let bp = match self.frame_pointer {
            Saved::Nowhere | Saved::Same => frame.bp,
            Saved::At(offset) => {
                let at = canonical.checked_add_signed(offset)?;
                match (memory.read)(at) {
                    Some(bp) => bp,
                    // An epilogue that has popped it already, and does not say so. Or `sp` is where the copy begins.
                    None if frame.innermost && at < frame.sp => frame.bp,
                    None => memory.word(at)?,
                }
            }
            Saved::Value(offset) => canonical.checked_add_signed(offset)?,
            Saved::In(register) => frame.register(register).unwrap_or(frame.bp),
            Saved::AtExpression(one) => evaluate(one).and_then(|at| (memory.read)(at)).unwrap_or(frame.bp),
            Saved::Expression(one) => evaluate(one).unwrap_or(frame.bp),
        };
        let ip = match self.return_address {
            Saved::At(offset) => memory.word(canonical.checked_add_signed(offset)?)?,
            Saved::Value(offset) => canonical.checked_add_signed(offset)?,
            Saved::In(register) => frame.register(register)?,
            Saved::AtExpression(one) => memory.word(evaluate(one)?)?,
            Saved::Expression(one) => evaluate(one)?,
            Saved::Same | Saved::Nowhere => memory.word(canonical.checked_sub(8)?)?,
        };
        checked(frame, Frame { ip, sp: canonical, bp, innermost: false })
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

/// The unwind information of one file.
pub struct UnwindTable {
    frames: Bytes,
    header: Option<Bytes>,
    /// Without a header: where each entry's function begins, and where the entry is.
    index: (Vec<(u64, usize)>, Kept),
    bases: BaseAddresses,
    context: UnwindContext<usize>,
}

impl UnwindTable {
    /// Of a file that has none.
    pub fn none() -> Self {
        Self {
            frames: Bytes::from(Vec::new()),
            header: None,
            index: (Vec::new(), Kept::of(0)),
            bases: BaseAddresses::default(),
            context: UnwindContext::new(),
        }
    }

    /// Read the sections of a file; without `.eh_frame_hdr` the entries are indexed, some ms for a server.
    pub fn of(elf: &ElfFile) -> Self {
        let mut table = Self::none();
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
            let index = index(&frames.data, &table.bases);
            let kept = Kept::of(size_of_val(&index[..]));
            table.index = (index, kept);
        }
        table.frames = frames.data;
        table
    }

    /// The rule at an ELF virtual address.
    pub fn rule(&mut self, svma: u64, steps: &mut u64) -> Rule {
        let Self { frames, header, index, bases, context } = self;
        let section = section(frames);
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
        let return_address = row.register(X86_64::RA);
        if matches!(return_address, None | Some(RegisterRule::Undefined)) {
            return Rule::Root { undefined: return_address.is_some() };
        }
        let canonical = match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => Canonical::Offset(*register, *offset),
            CfaRule::Expression(expression) => Canonical::Expression(*expression),
        };
        let frame_pointer = saved(row.register(X86_64::RBP).as_ref());
        let return_address = saved(return_address.as_ref());
        match (canonical, frame_pointer, return_address) {
            (Canonical::Offset(X86_64::RBP, 16), Saved::At(-16), Saved::At(-8)) => Rule::FramePointer,
            _ => Rule::Described(Row { canonical, frame_pointer, return_address, encoding }),
        }
    }

    /// The value of an expression over the registers of a frame; one that takes too long has none.
    fn evaluate(
        &self,
        expression: Expression,
        encoding: Encoding,
        frame: Frame,
        steps: &mut u64,
    ) -> Option<u64> {
        *steps = steps.saturating_sub(EXPRESSION_STEPS);
        let code = expression.get(&section(&self.frames)).ok()?;
        let mut evaluation = Evaluation::new(code.0, encoding);
        evaluation.set_max_iterations(limits::EXPRESSION);
        let mut result = evaluation.evaluate();
        loop {
            match result {
                Ok(EvaluationResult::Complete) => break,
                Ok(EvaluationResult::RequiresRegister { register, .. }) => {
                    result = evaluation.resume_with_register(Value::Generic(frame.register(register)?));
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

fn section(frames: &Bytes) -> EhFrame<Slice<'_>> {
    let mut section = EhFrame::new(frames, LittleEndian);
    section.set_address_size(8);
    section
}

/// The entry of the last function that begins at or before the address.
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

/// Where the function of each entry begins, in order. Ends where the section is damaged.
fn index(frames: &Bytes, bases: &BaseAddresses) -> Vec<(u64, usize)> {
    let section = section(frames);
    let mut entries = section.entries(bases);
    let mut found = Vec::new();
    let mut last = None;
    while let Ok(Some(entry)) = entries.next()
        && found.len() < limits::UNWIND_ENTRIES
    {
        let CieOrFde::Fde(entry) = entry else { continue };
        // Most entries share the one that came before: it is parsed once.
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
    found
}
