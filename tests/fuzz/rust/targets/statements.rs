//! Fuzzes the parser of statements in a server's memory. The input is the memory from `BASE` on; its first
//! byte selects how the connections are stored. tests/fuzz/server_memory.py writes the same layout.
#![no_main]

use std::collections::HashSet;
use std::ptr;

use _native::digest::{Context, Words};
use _native::statements::{Arrays, Field, Layout, Reader, Walk};
use innoscope_fuzz::within_limits;
use libfuzzer_sys::fuzz_target;

/// The address of the fuzzed memory, so that an input can contain pointers. Nothing else is mapped there.
const BASE: u64 = 0x2000_0000_0000;
const BYTES: usize = 64 << 10;
/// The offset of the variable that the walks begin with.
const FIRST: u64 = 8;
const MOST_TEXT: usize = 4_096;
const MOST_NAME: usize = 400;
const MOST_COMMANDS: usize = 1_000;

fn map() {
    let (protection, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
    );
    let wanted = ptr::without_provenance_mut(BASE as usize);
    // SAFETY: the kernel chooses pages that are not in use, or fails.
    let found = unsafe { libc::mmap(wanted, BYTES, protection, flags, -1, 0) };
    assert_eq!(found, wanted);
}

fn fill(data: &[u8]) {
    // SAFETY: `map` mapped these pages, and only this thread accesses them. The data is not longer.
    unsafe {
        let memory = ptr::with_exposed_provenance_mut::<u8>(BASE as usize);
        ptr::write_bytes(memory, 0, BYTES);
        ptr::copy_nonoverlapping(data.as_ptr(), memory, data.len().min(BYTES));
    }
}

fn walk(kind: u8) -> Walk {
    let first = BASE + FIRST;
    match kind & 3 {
        0 => Walk::Linked { first, next: 8 },
        1 => Walk::Tree { first },
        inline => Walk::Arrays(Arrays {
            first,
            arrays: 4,
            bytes: 64,
            items: 8,
            count: 16,
            inline: (inline == 3).then_some(Field { offset: 4, size: 4 }),
            table: BASE,
        }),
    }
}

fn layout(kind: u8) -> Layout {
    let field = |offset| Field { offset, size: 8 };
    // A handle has 8 bytes, an id 4. The pointers to the names are in the THD, or in a structure.
    let thread = Field {
        offset: 16,
        size: if kind & 4 == 0 { 8 } else { 4 },
    };
    let names = if kind & 8 == 0 {
        [vec![56], vec![64]]
    } else {
        [vec![56, 0], vec![64]]
    };
    let [user, schema] = names;
    Layout {
        thread,
        connection: field(24),
        command: Field {
            offset: 72,
            size: 4,
        },
        query: field(48),
        text: field(32),
        length: field(40),
        user,
        schema,
    }
}

fuzz_target!(init: map(), |data: &[u8]| {
    let Some(&kind) = data.first() else {
        return;
    };
    fill(data);
    within_limits(|| {
        let context = Context { version: 80_031, words: Words::Mysql8, certain: false };
        let mut reader = Reader::new(std::process::id(), layout(kind), walk(kind), context, 1_024);
        for _ in 0..2 {
            let scan = reader.scan().expect("own memory");
            let busy = reader.choose_busy(scan, |tid| tid < 1 << 22);
            let commands = reader.commands().expect("own memory");
            assert!(commands.len() <= MOST_COMMANDS);
            let tids: HashSet<u32> = commands.iter().map(|(tid, _)| *tid).collect();
            assert!(tids.len() == commands.len() && tids.iter().all(|tid| busy.contains(tid)));
            let found: Vec<_> = commands.iter().map(|(_, command)| *command).collect();
            for one in reader.details(&found, true).expect("own memory") {
                assert!(one.text.is_none_or(|text| text.len() <= MOST_TEXT));
                let names = [one.user, one.schema];
                // A byte that is not UTF-8 becomes a character of three bytes.
                assert!(names.iter().flatten().all(|name| name.len() < 3 * MOST_NAME));
            }
            reader.choose(&busy.into_iter().collect());
            assert!(reader.commands().expect("own memory").len() <= MOST_COMMANDS);
        }
    });
});
