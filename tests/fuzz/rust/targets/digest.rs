//! Fuzzes the normalization of SQL statements. The first byte selects the context.
#![no_main]

use _native::digest::{Context, Words, cut, normalize};
use innoscope_fuzz::within_limits;
use libfuzzer_sys::fuzz_target;

/// Maximum length of a normalized text in bytes. A statement has at most 1,024 bytes of tokens, and a token of two
/// bytes is printed as at most 40 bytes.
const MAX_TEXT: usize = 1024 / 2 * 40;
const SECRET: &str = "hunter2hunter2";

fuzz_target!(|data: &[u8]| {
    let Some((&first, statement)) = data.split_first() else {
        return;
    };
    let words = if first & 1 == 0 {
        Words::Mysql8
    } else {
        Words::Mysql9
    };
    let context = Context {
        version: 80_031,
        words,
        certain: first & 2 != 0,
    };
    within_limits(|| {
        let text = normalize(statement, context);
        assert!(text.len() <= MAX_TEXT);
        assert!(!text.contains(char::is_control));
        assert!(cut(text, 50).chars().count() <= 50);
    });
    // A string at the end never appears in the result, unless it follows an unterminated string, name or comment.
    let opens = |byte: &u8| matches!(byte, b'\'' | b'"' | b'`' | b'/' | b'#' | b'-' | 0x80..);
    if !statement.iter().any(opens) && !normalize(statement, context).contains(SECRET) {
        let whole = [statement, b" '", SECRET.as_bytes()].concat();
        assert!(!normalize(&whole, context).contains(SECRET));
    }
});
