//! The active session history: samples of busy threads in Parquet files (docs/history.md).
//!
//! - `schema` defines the tables.
//! - `rows` holds the rows of an hour that are not in a file yet, and writes them.
//! - `dictionaries` looks up stacks and digests.
//! - `file` writes, checks and merges files.
//! - `footer` and `pages` limit what reading a file can cost; `thrift` reads the structs that they check.
//! - `query` groups the rows of files; `causes` finds the cause of each row; `values` assigns codes to values.

pub mod causes;
pub mod dictionaries;
pub mod file;
mod footer;
mod pages;
pub mod query;
pub mod rows;
pub mod schema;
mod thrift;
pub mod values;

use std::fmt;
use std::io;

use parquet::errors::ParquetError;

/// The reason why a file could not be written or read.
#[derive(Debug)]
pub enum Error {
    /// The operating system reported an error, such as a full disk.
    Os(io::Error),
    /// The file is not a file of this history, or it is damaged.
    Damaged(String),
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Os(error) => error.fmt(formatter),
            Self::Damaged(why) => formatter.write_str(why),
        }
    }
}

impl std::error::Error for Error {}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Os(error)
    }
}

impl From<ParquetError> for Error {
    /// Return the operating system error that the Parquet library has wrapped; any other error means a damaged file.
    fn from(error: ParquetError) -> Self {
        match error {
            ParquetError::External(inner) => match inner.downcast::<io::Error>() {
                Ok(error) => Self::Os(*error),
                Err(other) => Self::Damaged(other.to_string()),
            },
            other => Self::Damaged(other.to_string()),
        }
    }
}

/// The result type of this module.
pub type Result<T> = std::result::Result<T, Error>;
