//! Fuzzes the parser of the history's Parquet files. The first byte selects the table.
#![no_main]

use std::path::PathBuf;

use _native::history::query::{Filter, Question, group};
use _native::history::schema::{SAMPLES, SNAPSHOTS, TEXTS};
use _native::history::{dictionaries, file};
use innoscope_fuzz::{with_file, within_limits};
use libfuzzer_sys::fuzz_target;

const MOST_GROUPS: usize = 1_000;
/// A part of the source paths of the Parquet library. The core catches the library's panics.
const LIBRARY: &str = "/parquet-";

/// Abort on a panic, unless the Parquet library caused it.
fn expect_panics() {
    let abort = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !panic
            .location()
            .is_some_and(|place| place.file().contains(LIBRARY))
        {
            abort(panic);
        }
    }));
}

fn question(by: &[&str], filters: Vec<Filter>) -> Question {
    Question {
        span: (i64::MIN, i64::MAX),
        by: by.iter().map(|name| (*name).to_owned()).collect(),
        filters,
        most_groups: MOST_GROUPS,
    }
}

fn by_all_columns(files: &[PathBuf]) {
    let ids = [
        "taken_at",
        "server",
        "tid",
        "connection",
        "blocker_connection",
        "stack",
    ];
    let stored = [&ids[..], &TEXTS].concat();
    let filter = Filter {
        column: "wait".to_owned(),
        values: vec![None, Some("row".to_owned())],
        prefix: true,
    };
    let questions = [
        question(&stored, Vec::new()),
        question(&["cause", "cause_connection", "cause_state"], vec![filter]),
    ];
    for asked in &questions {
        let answer = group(files, SAMPLES, asked, |_, _| {});
        assert!(answer.groups.len() <= MOST_GROUPS);
        // A weight above a limit counts as zero, so the sum is finite.
        assert!(answer.groups.iter().all(|one| one.1.weight.is_finite()));
    }
}

fn read(table: u8, files: &[PathBuf]) {
    match table & 3 {
        0 => by_all_columns(files),
        1 => {
            let _ = file::check(&files[0], SNAPSHOTS);
            let by_server = question(&["server"], Vec::new());
            group(files, SNAPSHOTS, &by_server, |_, _| {});
        }
        2 => {
            dictionaries::stacks(files, &[0, 1], |_, _| {});
        }
        _ => {
            dictionaries::digests(files, &[String::new()], |_, _| {});
        }
    }
}

fuzz_target!(init: expect_panics(), |data: &[u8]| {
    let Some((&table, content)) = data.split_first() else {
        return;
    };
    with_file(content, |path| {
        within_limits(|| read(table, &[path.to_owned()]))
    });
});
