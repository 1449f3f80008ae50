//! The names of functions in the stacks of one process, which are limited in size.

use std::borrow::Cow;
use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::stack_budget::{Budget, Limit, Share};
use crate::symbols::limits;

/// The distinct names of functions. All frames with the same name share one copy. Names are never removed, so that
/// the budget also holds for callers that keep frames.
pub(super) struct SharedNames {
    names: FxHashSet<Arc<str>>,
    share: Share,
    /// The limit because of which the name of a function was omitted.
    pub(super) reached: Option<Limit>,
}

impl SharedNames {
    pub(super) fn new(budget: &'static Budget) -> Self {
        Self { names: FxHashSet::default(), share: Share::new(budget), reached: None }
    }

    /// Return the shared copy of a name. If the budget is used up, a new name is not shared.
    pub(super) fn share(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.names.get(name) {
            return Arc::clone(known);
        }
        let new: Arc<str> = name.into();
        if self.share.exhausted().is_none() {
            self.share.add(memory_bytes(name));
            self.names.insert(Arc::clone(&new));
        }
        new
    }

    /// Return the shared copy of a function's name from a file, cut to [`limits::SHOWN_NAME`] characters. Return
    /// `None` if it is a new name and the budget is used up.
    pub(super) fn share_function(&mut self, name: &str) -> Option<Arc<str>> {
        let name = cut(name);
        let exhausted = self.share.exhausted();
        if exhausted.is_some() && !self.names.contains(&*name) {
            self.reached = exhausted;
            return None;
        }
        Some(self.share(&name))
    }

    /// Return true if the name of a function was omitted, although there is room for names again.
    pub(super) fn can_grow_again(&self) -> bool {
        self.reached.is_some() && self.share.exhausted().is_none()
    }
}

/// Return the size of a name with its copy in Python, where a character takes up to four bytes, unless all are ASCII.
fn memory_bytes(name: &str) -> usize {
    let in_python = if name.is_ascii() { name.len() } else { 4 * name.chars().count() };
    limits::SHOWN_NAME_ENTRY + name.len() + in_python
}

/// Cut a longer name to [`limits::SHOWN_NAME`] characters, the last of which is an ellipsis.
fn cut(name: &str) -> Cow<'_, str> {
    if name.chars().nth(limits::SHOWN_NAME).is_none() {
        return Cow::Borrowed(name);
    }
    Cow::Owned(name.chars().take(limits::SHOWN_NAME - 1).chain(['…']).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut_to_characters_and_marked() {
        let longest = "é".repeat(limits::SHOWN_NAME);
        assert_eq!(cut(&longest), longest);
        let expected = format!("{}…", "é".repeat(limits::SHOWN_NAME - 1));
        assert_eq!(cut(&format!("{longest}é")), expected);
    }

    /// Share distinct names of functions until the budget is used up, and return their number.
    fn fill(names: &mut SharedNames, name: &str) -> usize {
        (0..100_000).map_while(|n| names.share_function(&format!("{n:06}{name}"))).count()
    }

    #[test]
    fn equal_names_are_shared_and_their_total_size_is_limited() {
        static BUDGET: Budget = Budget::new(0, limits::SHOWN_NAMES_BYTES, usize::MAX);
        let mut names = SharedNames::new(&BUDGET);
        let first = names.share_function("first").unwrap();
        assert!(Arc::ptr_eq(&first, &names.share_function("first").unwrap()));
        let fit = fill(&mut names, &"x".repeat(limits::SHOWN_NAME));
        assert!(names.share.used() < limits::SHOWN_NAMES_BYTES + 2 * limits::SHOWN_NAME);
        assert!(names.reached == Some(Limit::OfProcess) && fit > 1_000);
        let distinct = names.names.len();
        assert_eq!(&*names.share("of the kernel"), "of the kernel");
        assert_eq!(names.names.len(), distinct);
        assert!(names.share_function("first").is_some());
    }

    #[test]
    fn the_size_of_short_names_is_that_of_their_entries() {
        static BUDGET: Budget = Budget::new(0, limits::SHOWN_NAMES_BYTES, usize::MAX);
        let fit = fill(&mut SharedNames::new(&BUDGET), "");
        assert!(fit <= limits::SHOWN_NAMES_BYTES / limits::SHOWN_NAME_ENTRY, "{fit}");
        assert_eq!(memory_bytes("é") - limits::SHOWN_NAME_ENTRY, 2 + 4);
    }

    #[test]
    fn the_names_of_many_processes_are_limited_and_resolved_again_when_there_is_room() {
        static BUDGET: Budget = Budget::new(1 << 10, 64 << 10, 256 << 10);
        let mut processes: Vec<SharedNames> = (0..64).map(|_| SharedNames::new(&BUDGET)).collect();
        let fit: Vec<usize> = processes.iter_mut().map(|names| fill(names, "f")).collect();
        let total: usize = processes.iter().map(|names| names.share.used()).sum();
        assert!(total < (64 << 10) + (256 << 10) + 64 * 200, "{total}");
        assert!(fit[63] >= 5, "{fit:?}");
        assert_eq!(processes[63].reached, Some(Limit::Shared));
        assert!(!processes[63].can_grow_again());
        drop(processes.swap_remove(0));
        assert!(processes[0].can_grow_again());
    }
}
