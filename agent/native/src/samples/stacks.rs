//! Assigns numbers to stacks by their functions: stacks that differ only in their addresses are treated as
//! equal.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::modules::Modules;
use crate::names::{AddressNames, Frame};

/// Maximum number of cached addresses. To limit memory, the cache is cleared when it is full.
const MAX_CACHED_ADDRESSES: usize = 100_000;

/// Assigns a number to each distinct stack. Stacks are never dropped: compared by functions, a profile has
/// only thousands of distinct stacks, not millions.
pub struct Stacks {
    names: AddressNames,
    at: FxHashMap<(u64, bool), Arc<[u32]>>,
    in_kernel: FxHashMap<u64, u32>,
    numbers: FxHashMap<Frame, u32>,
    frames: Vec<Frame>,
    known: FxHashMap<Arc<[u32]>, u32>,
    in_order: Vec<Arc<[u32]>>,
}

impl Stacks {
    /// Create an empty set; see [`AddressNames::new`] for the arguments.
    pub fn new(inlines: bool, kernel: bool) -> Self {
        Self {
            names: AddressNames::new(inlines, kernel),
            at: FxHashMap::default(),
            in_kernel: FxHashMap::default(),
            numbers: FxHashMap::default(),
            frames: Vec::new(),
            known: FxHashMap::default(),
            in_order: Vec::new(),
        }
    }

    /// Clear the cached addresses. This is needed after the modules have changed, because an address may then
    /// belong to another function.
    pub fn clear_addresses(&mut self) {
        self.names.clear();
        self.at.clear();
    }

    /// Return the frames of a stack, innermost first, or no frames if the number is unknown.
    pub fn frames(&self, stack: u32) -> impl Iterator<Item = &Frame> {
        let numbers = self.in_order.get(stack as usize).map(|numbers| &**numbers).unwrap_or_default();
        numbers.iter().map(|number| &self.frames[*number as usize])
    }

    /// Return the number of a stack. Both lists of addresses are innermost first, and the kernel's frames
    /// come before the user frames.
    pub fn number(&mut self, modules: &Modules, addresses: &[u64], kernel: &[u64]) -> u32 {
        let mut numbers = Vec::with_capacity(addresses.len() + kernel.len());
        for address in kernel {
            numbers.push(self.kernel_frame(*address));
        }
        for (depth, address) in addresses.iter().enumerate() {
            numbers.extend_from_slice(self.user_frames(modules, *address, depth == 0));
        }
        if let Some(known) = self.known.get(&*numbers) {
            return *known;
        }
        let number = self.in_order.len() as u32;
        let stack: Arc<[u32]> = numbers.into();
        self.in_order.push(Arc::clone(&stack));
        self.known.insert(stack, number);
        number
    }

    /// Count the innermost kernel addresses that belong to the scheduler, or to our program attached to it. A
    /// snapshot of a waiting thread does not contain them.
    pub fn in_scheduler(&mut self, kernel: &[u64]) -> usize {
        let is_scheduler = |function: &str| {
            ["bpf_", "__bpf_", "__traceiter_", "__schedule", "schedule", "io_schedule", "preempt_schedule"]
                .iter()
                .any(|prefix| function.starts_with(prefix))
        };
        let numbers: Vec<u32> = kernel.iter().map(|address| self.kernel_frame(*address)).collect();
        let functions = numbers.iter().map(|number| self.frames[*number as usize].function.as_deref());
        functions.take_while(|function| function.is_some_and(is_scheduler)).count()
    }

    fn kernel_frame(&mut self, address: u64) -> u32 {
        if let Some(known) = self.in_kernel.get(&address) {
            return *known;
        }
        let frame = self.names.in_kernel(address);
        let number = frame_number(&mut self.numbers, &mut self.frames, frame);
        self.in_kernel.insert(address, number);
        number
    }

    fn user_frames(&mut self, modules: &Modules, address: u64, innermost: bool) -> &[u32] {
        if self.at.len() > MAX_CACHED_ADDRESSES {
            self.clear_addresses();
        }
        let (numbers, frames, names) = (&mut self.numbers, &mut self.frames, &mut self.names);
        self.at.entry((address, innermost)).or_insert_with(|| {
            let found = names.at(modules, address, innermost);
            found.iter().map(|frame| frame_number(numbers, frames, frame.clone())).collect()
        })
    }
}

/// Return the number of a frame. All addresses in a function have the same number; the frame keeps the offset
/// of the first one.
fn frame_number(numbers: &mut FxHashMap<Frame, u32>, frames: &mut Vec<Frame>, frame: Frame) -> u32 {
    let offset = if frame.function.is_some() { 0 } else { frame.offset };
    let key = Frame { offset, ..frame.clone() };
    *numbers.entry(key).or_insert_with(|| {
        frames.push(frame);
        frames.len() as u32 - 1
    })
}
