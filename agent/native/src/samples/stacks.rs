//! Assigns ids to stacks by their functions: stacks that differ only in their addresses are treated as equal.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::modules::Modules;
use crate::names::{AddressNames, Frame};
use crate::symbols::limits;

/// Maximum number of cached addresses. To limit memory, the cache is cleared when it is full.
const MAX_CACHED_ADDRESSES: usize = 100_000;

/// The id of the stacks for which there was no room. They have no frames.
pub const DROPPED: u32 = u32::MAX;
/// Estimated size of a function in bytes: a frame in each of two tables.
const FUNCTION_BYTES: usize = 200;
/// Estimated size of a stack in bytes, without the ids of its frames.
const STACK_BYTES: usize = 100;

/// Assigns an id to each distinct stack. If the stacks exceed [`limits::PROFILE_STACKS`], new ones are dropped.
pub struct Stacks {
    names: AddressNames,
    at: FxHashMap<(u64, bool), Arc<[u32]>>,
    in_kernel: FxHashMap<u64, u32>,
    functions: Functions,
    known: FxHashMap<Arc<[u32]>, u32>,
    in_order: Vec<Arc<[u32]>>,
    /// Estimated size of the stacks in bytes, without their functions.
    bytes: usize,
    /// Number of captured stacks that were dropped.
    dropped: u64,
}

/// The distinct functions, by id.
#[derive(Default)]
struct Functions {
    ids: FxHashMap<Frame, u32>,
    frames: Vec<Frame>,
}

impl Functions {
    /// Return the id of a frame. All addresses in a function share one id; the frame keeps the offset of the first
    /// address. Return `None` if the frame is new and there is no room.
    fn id(&mut self, frame: &Frame, has_room: bool) -> Option<u32> {
        let offset = if frame.function.is_some() { 0 } else { frame.offset };
        match self.ids.entry(Frame { offset, ..frame.clone() }) {
            Entry::Occupied(known) => Some(*known.get()),
            Entry::Vacant(new) if has_room => {
                self.frames.push(frame.clone());
                Some(*new.insert(self.frames.len() as u32 - 1))
            }
            Entry::Vacant(_) => None,
        }
    }
}

impl Stacks {
    /// Create an empty set; see [`AddressNames::new`] for the arguments.
    pub fn new(inlines: bool, kernel: bool) -> Self {
        Self {
            names: AddressNames::new(inlines, kernel),
            at: FxHashMap::default(),
            in_kernel: FxHashMap::default(),
            functions: Functions::default(),
            known: FxHashMap::default(),
            in_order: Vec::new(),
            bytes: 0,
            dropped: 0,
        }
    }

    /// Clear the cached addresses. This is needed after the modules have changed, because an address may then
    /// belong to another function.
    pub fn clear_addresses(&mut self) {
        self.names.clear();
        self.at.clear();
    }

    /// Return the frames of a stack, innermost first, or no frames if the id is unknown.
    pub fn frames(&self, stack: u32) -> impl Iterator<Item = &Frame> {
        let numbers = self.in_order.get(stack as usize).map(|numbers| &**numbers).unwrap_or_default();
        numbers.iter().map(|number| &self.functions.frames[*number as usize])
    }

    /// Return a message for each limit that was reached.
    pub fn problems(&self) -> impl Iterator<Item = String> {
        let stacks = (self.dropped > 0).then(|| {
            format!(
                "{} captured stacks are missing and marked truncated: the distinct stacks of this profile exceed \
                 {} bytes",
                self.dropped,
                limits::PROFILE_STACKS
            )
        });
        self.names.problem().into_iter().chain(stacks)
    }

    fn has_room(&self) -> bool {
        self.bytes + FUNCTION_BYTES * self.functions.frames.len() < limits::PROFILE_STACKS
    }

    /// Return the id of a stack; [`DROPPED`] if it is new and there is no room. Both lists of addresses are innermost
    /// first, and the kernel's frames come before the user frames.
    pub fn number(&mut self, modules: &Modules, addresses: &[u64], kernel: &[u64]) -> u32 {
        let number = self.find_or_add(modules, addresses, kernel);
        self.dropped += u64::from(number.is_none());
        number.unwrap_or(DROPPED)
    }

    fn find_or_add(&mut self, modules: &Modules, addresses: &[u64], kernel: &[u64]) -> Option<u32> {
        let mut numbers = Vec::with_capacity(addresses.len() + kernel.len());
        for address in kernel {
            numbers.push(self.kernel_frame(*address));
        }
        for (depth, address) in addresses.iter().enumerate() {
            numbers.extend_from_slice(self.user_frames(modules, *address, depth == 0)?);
        }
        if let Some(known) = self.known.get(&*numbers) {
            return Some(*known);
        }
        if !self.has_room() {
            return None;
        }
        self.bytes += STACK_BYTES + size_of_val(&*numbers);
        let number = self.in_order.len() as u32;
        let stack: Arc<[u32]> = numbers.into();
        self.in_order.push(Arc::clone(&stack));
        self.known.insert(stack, number);
        Some(number)
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
        let functions =
            numbers.iter().map(|number| self.functions.frames[*number as usize].function.as_deref());
        functions.take_while(|function| function.is_some_and(is_scheduler)).count()
    }

    /// Return the id of the frame of a kernel address. There is always room, because the kernel's code is limited.
    fn kernel_frame(&mut self, address: u64) -> u32 {
        if let Some(known) = self.in_kernel.get(&address) {
            return *known;
        }
        let frame = self.names.in_kernel(address);
        let number = self.functions.id(&frame, true).unwrap_or_default();
        self.in_kernel.insert(address, number);
        number
    }

    /// Return the ids of the frames of an address, or `None` if one is new and there is no room.
    fn user_frames(&mut self, modules: &Modules, address: u64, innermost: bool) -> Option<&[u32]> {
        if self.at.len().max(self.names.len()) > MAX_CACHED_ADDRESSES {
            self.clear_addresses();
        }
        let has_room = self.has_room();
        match self.at.entry((address, innermost)) {
            Entry::Occupied(known) => Some(known.into_mut()),
            Entry::Vacant(new) => {
                let found = self.names.at(modules, address, innermost);
                let numbers = found.iter().map(|frame| self.functions.id(frame, has_room));
                Some(new.insert(numbers.collect::<Option<Arc<[u32]>>>()?))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_beyond_the_limit_are_dropped_and_counted() {
        let modules = Modules::fixed(Vec::new());
        let mut stacks = Stacks::new(false, false);
        let first = stacks.number(&modules, &[1, 2], &[]);
        assert!(stacks.problems().next().is_none());
        let most = (limits::PROFILE_STACKS / FUNCTION_BYTES) as u64;
        let kept = (10..10 + 2 * most)
            .take_while(|address| stacks.number(&modules, &[*address, *address + (1 << 40)], &[]) != DROPPED);
        let kept = kept.count();
        assert!(kept > 100_000 && stacks.in_order.len() == kept + 1, "{kept}");
        assert_eq!(stacks.number(&modules, &[1, 2], &[]), first);
        let frames = stacks.functions.frames.len();
        assert!((1..=1_000).all(|address| stacks.number(&modules, &[address << 50], &[]) == DROPPED));
        assert_eq!((stacks.functions.frames.len(), stacks.frames(DROPPED).count()), (frames, 0));
        let note = stacks.problems().next().unwrap();
        assert!(note.starts_with("1001 captured stacks are missing and marked truncated"), "{note}");
    }
}
