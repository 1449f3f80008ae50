//! Reads the unwind rules of one file from `.eh_frame`.

use std::cell::OnceCell;

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, EhFrameHdr, Encoding, EndianSlice, Evaluation,
    EvaluationResult, FrameDescriptionEntry, LittleEndian, Location, ParsedEhFrameHdr, RegisterRule,
    UnwindContext, UnwindSection as _, Value,
};

use super::{Canonical, Expression, Frame, Memory, Row, Rule, Saved};
use crate::arch::{Arch, NATIVE};
use crate::symbols::memory_budget::CountedBytes;
use crate::symbols::{Bytes, ElfFile, limits};

type Slice<'data> = EndianSlice<'data, LittleEndian>;

/// Number of unwind steps charged for the evaluation of one expression, whether or not it terminates.
const EXPRESSION_STEPS: u64 = 50;

/// The unwind table of one file.
pub struct UnwindTable {
    pub(super) arch: &'static Arch,
    frames: Bytes,
    header: Option<Bytes>,
    /// For a file without `.eh_frame_hdr`: (start address of the entry's function, offset of the entry),
    /// sorted.
    index: (Vec<(u64, usize)>, CountedBytes),
    bases: BaseAddresses,
    context: UnwindContext<usize>,
    /// The first limit that an entry or an expression exceeded.
    problem: OnceCell<String>,
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
            problem: OnceCell::new(),
        }
    }

    /// Return the limit that an entry or an expression exceeded, if any.
    pub fn problem(&self) -> Option<&str> {
        self.problem.get().map(String::as_str)
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

    /// Return the unwind rule for an ELF virtual address, and subtract the size of its entry from `steps`.
    pub fn rule(&mut self, svma: u64, steps: &mut u64) -> Rule {
        let Self { arch, frames, header, index, bases, context, problem } = self;
        let section = section(frames, arch);
        let Some(entry) = entry(&section, header.as_deref(), &index.0, bases, svma) else {
            return Rule::FramePointer;
        };
        let size = entry.entry_len().saturating_add(entry.cie().entry_len());
        *steps = steps.saturating_sub(size as u64);
        if size > limits::UNWIND_ENTRY {
            problem.get_or_init(|| {
                format!("an entry of .eh_frame has more than {} bytes", limits::UNWIND_ENTRY)
            });
            return Rule::TooLarge;
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

    /// Evaluate an expression over the registers and the stack of a frame; return `None` if it fails or takes
    /// too many steps.
    pub(super) fn evaluate<F: Fn(u64) -> Option<u64>>(
        &self,
        expression: Expression,
        encoding: Encoding,
        frame: Frame,
        memory: &mut Memory<F>,
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
                // A function that aligns its stack saves the address of its caller's frame on the stack.
                Ok(EvaluationResult::RequiresMemory { address, size: 8, space: None, .. }) => {
                    result = evaluation.resume_with_memory(Value::Generic(memory.word(address)?));
                }
                Err(gimli::Error::TooManyIterations) => {
                    self.problem.get_or_init(|| {
                        format!(
                            "an expression in .eh_frame takes more than {} operations",
                            limits::EXPRESSION
                        )
                    });
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
