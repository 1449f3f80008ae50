//! The schemas of the history's tables. Users' queries depend on the columns' names and types
//! (docs/history.md).

use std::sync::Arc;

use parquet::schema::parser::parse_message_type;
use parquet::schema::types::TypePtr;

/// One row per busy thread and snapshot.
pub const SAMPLES: &str = "message samples {
    REQUIRED INT64 taken_at (TIMESTAMP(MICROS,true));
    REQUIRED DOUBLE weight;
    REQUIRED BYTE_ARRAY server (UTF8);
    REQUIRED INT32 tid;
    OPTIONAL INT64 connection;
    OPTIONAL INT64 blocker_connection;
    REQUIRED INT64 stack;
    OPTIONAL BYTE_ARRAY kind (UTF8);
    OPTIONAL BYTE_ARRAY user (UTF8);
    OPTIONAL BYTE_ARRAY schema (UTF8);
    OPTIONAL BYTE_ARRAY digest (UTF8);
    OPTIONAL BYTE_ARRAY command (UTF8);
    OPTIONAL BYTE_ARRAY wait (UTF8);
    OPTIONAL BYTE_ARRAY object (UTF8);
    OPTIONAL BYTE_ARRAY blocker_digest (UTF8);
    OPTIONAL BYTE_ARRAY statement_trust (UTF8);
    OPTIONAL BYTE_ARRAY stack_trust (UTF8);
}";

/// The optional text columns of `SAMPLES`, in the same order.
pub const TEXTS: [&str; 10] = [
    "kind",
    "user",
    "schema",
    "digest",
    "command",
    "wait",
    "object",
    "blocker_digest",
    "statement_trust",
    "stack_trust",
];

/// One row per snapshot, even if no thread was busy. The sum of the weights is the time observed.
pub const SNAPSHOTS: &str = "message snapshots {
    REQUIRED INT64 taken_at (TIMESTAMP(MICROS,true));
    REQUIRED DOUBLE weight;
    REQUIRED BYTE_ARRAY server (UTF8);
}";

/// The functions of each stack, innermost first.
pub const STACKS: &str = "message stacks {
    REQUIRED INT64 stack;
    REQUIRED GROUP functions (LIST) { REPEATED GROUP list { REQUIRED BYTE_ARRAY element (UTF8); } }
}";

/// The normalized text of each digest.
pub const DIGESTS: &str = "message digests {
    REQUIRED BYTE_ARRAY digest (UTF8);
    REQUIRED BYTE_ARRAY text (UTF8);
}";

/// Return the schema of a table; None if there is no such table.
pub fn of_table(name: &str) -> Option<&'static str> {
    match name {
        "samples" => Some(SAMPLES),
        "snapshots" => Some(SNAPSHOTS),
        "stacks" => Some(STACKS),
        "digests" => Some(DIGESTS),
        _ => None,
    }
}

/// Parse one of the constants above.
///
/// # Panics
///
/// Panics if it is not a valid schema.
pub fn parsed(message: &str) -> TypePtr {
    Arc::new(parse_message_type(message).expect("the schema is a constant"))
}
