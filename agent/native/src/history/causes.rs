//! Finds the cause of each sample: the sample's own statement, or, if the thread is waiting for a lock, the root
//! of the chain of blocking connections in the same snapshot.

use parquet::column::reader::ColumnReader;
use parquet::file::reader::RowGroupReader;
use rustc_hash::FxHashMap;

use crate::history::query::{Value, wrong_type};
use crate::history::values::Codes;
use crate::history::{Error, Result};

/// The columns that this module computes: the statement, the connection, and the state (a variant of `Cause`).
pub const COLUMNS: [&str; 3] = ["cause", "cause_connection", "cause_state"];
/// Length of the period before the requested start whose rows are read too, and maximum age of a connection's
/// last statement, in microseconds.
pub const LOOK_BACK_US: i64 = 3_600_000_000;
/// Maximum number of connections whose last statement is remembered.
const MOST_CONNECTIONS: usize = 100_000;
/// Maximum number of rows of a snapshot whose causes are computed together.
pub const MOST_ROWS: usize = 65_536;
/// Wait classes that mean that another connection blocks the thread, even if that connection is unknown.
const LOCKS: [&str; 3] = ["row_lock", "metadata_lock", "user_lock"];
/// Placeholders for a statement in `cause`.
const CYCLE: &str = "(cycle)";
const UNKNOWN: &str = "(unknown blocker)";
const IDLE: &str = "(idle transaction)";
const UNREAD: &str = "(unknown statement)";

/// The values of a row that `Causes` needs.
#[derive(Debug, Clone)]
pub struct Row {
    /// Unix time in microseconds.
    pub at: i64,
    /// Weight in seconds.
    pub weight: f64,
    server: u32,
    connection: Option<i64>,
    blocker: Option<i64>,
    digest: u32,
    waits: bool,
}

/// The cause of a row. A digest is represented by its code in `Causes::digests`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// The thread is not blocked.
    Itself { connection: Option<i64>, digest: u32 },
    /// The connection at the end of the chain is executing a statement, or is busy with an unknown statement.
    Executing { connection: i64, digest: u32 },
    /// The connection at the end of the chain is idle; `digest` is its last statement.
    Idle { connection: i64, digest: Option<u32> },
    /// The chain leads back into itself.
    Cycle,
    /// A thread of the chain is waiting for a lock whose holder is not known.
    Unknown,
}

/// Computes the causes of rows that are added in the order of the files.
#[derive(Default)]
pub struct Causes {
    servers: Codes,
    digests: Codes,
    waits: Codes,
    /// The last statement of each connection and its time, by server and connection id.
    last: FxHashMap<(u32, i64), (u32, i64)>,
}

/// The readers of a row group's columns that `Causes` needs.
pub struct Readers {
    server: ColumnReader,
    digest: ColumnReader,
    wait: ColumnReader,
    connection: ColumnReader,
    blocker: ColumnReader,
}

impl Readers {
    /// Open the columns of a row group of `samples`.
    pub fn new(group: &dyn RowGroupReader) -> Result<Self> {
        let column = |name: &str| {
            let columns = group.metadata().columns();
            let at = columns.iter().position(|column| column.column_path().string() == name);
            let at = at.ok_or_else(|| Error::Damaged("a column is missing".to_owned()))?;
            Ok::<_, Error>(group.get_column_reader(at)?)
        };
        Ok(Self {
            server: column("server")?,
            digest: column("digest")?,
            wait: column("wait")?,
            connection: column("connection")?,
            blocker: column("blocker_connection")?,
        })
    }
}

impl Causes {
    /// Read the next rows of a row group; their times and weights have already been read.
    pub fn read(&mut self, readers: &mut Readers, times: &[i64], weights: &[f64]) -> Result<Vec<Row>> {
        let rows = times.len();
        let (mut servers, mut digests, mut waits) = (Vec::new(), Vec::new(), Vec::new());
        self.servers.read(&mut readers.server, rows, &mut servers)?;
        self.digests.read(&mut readers.digest, rows, &mut digests)?;
        self.waits.read(&mut readers.wait, rows, &mut waits)?;
        let connections = optional(&mut readers.connection, rows)?;
        let blockers = optional(&mut readers.blocker, rows)?;
        let is_lock: Vec<bool> = self
            .waits
            .values
            .iter()
            .map(|value| matches!(value, Value::Text(text) if LOCKS.contains(&text.as_str())))
            .collect();
        let row = |at: usize| Row {
            at: times[at],
            weight: weights[at],
            server: servers[at],
            connection: connections[at],
            blocker: blockers[at],
            digest: digests[at],
            waits: is_lock[waits[at] as usize],
        };
        Ok((0..rows).map(row).collect())
    }

    /// Return whether two rows belong to the same snapshot.
    pub fn is_same_snapshot(one: &Row, other: &Row) -> bool {
        (one.at, one.server) == (other.at, other.server)
    }

    /// Compute the causes of a snapshot's rows. Call `each` with each row's position and its values of
    /// `COLUMNS`.
    pub fn each(&mut self, rows: &[Row], mut each: impl FnMut(usize, [Value; 3])) {
        let causes = self.of_snapshot(rows);
        for (at, cause) in causes.into_iter().enumerate() {
            each(at, self.values(cause));
        }
    }

    fn of_snapshot(&mut self, rows: &[Row]) -> Vec<Cause> {
        let by_connection: FxHashMap<i64, &Row> =
            rows.iter().filter_map(|row| Some((row.connection?, row))).collect();
        let mut known: FxHashMap<i64, Cause> = FxHashMap::default();
        let causes = rows
            .iter()
            .map(|row| match row.blocker {
                Some(blocker) => self.root(row, blocker, &by_connection, &mut known),
                None if row.waits => Cause::Unknown,
                None => Cause::Itself { connection: row.connection, digest: row.digest },
            })
            .collect();
        for row in rows {
            if let (Some(connection), true) = (row.connection, row.digest > 0) {
                self.remember((row.server, connection), row.digest, row.at);
            }
        }
        causes
    }

    /// Follow the chain of blockers from a row, and remember the root for each connection on the way.
    fn root(
        &mut self,
        row: &Row,
        blocker: i64,
        rows: &FxHashMap<i64, &Row>,
        known: &mut FxHashMap<i64, Cause>,
    ) -> Cause {
        let mut path = Vec::new();
        let mut connection = blocker;
        let cause = loop {
            if let Some(cause) = known.get(&connection) {
                break *cause;
            }
            // Mark each connection of the chain: reaching a marked connection again means a cycle.
            known.insert(connection, Cause::Cycle);
            path.push(connection);
            match rows.get(&connection) {
                None => break self.idle((row.server, connection), row.at),
                Some(next) => match next.blocker {
                    Some(blocker) => connection = blocker,
                    None if next.waits => break Cause::Unknown,
                    None => break Cause::Executing { connection, digest: next.digest },
                },
            }
        };
        known.extend(path.into_iter().map(|connection| (connection, cause)));
        cause
    }

    /// Return the cause for an idle connection, with its last statement. The statement is remembered while
    /// other connections wait for this connection.
    fn idle(&mut self, key: (u32, i64), at: i64) -> Cause {
        let last = self.last.get_mut(&key).filter(|last| at.saturating_sub(last.1) <= LOOK_BACK_US);
        let digest = last.map(|last| {
            last.1 = at;
            last.0
        });
        Cause::Idle { connection: key.1, digest }
    }

    fn remember(&mut self, key: (u32, i64), digest: u32, at: i64) {
        if self.last.len() >= MOST_CONNECTIONS && !self.last.contains_key(&key) {
            self.last.retain(|_, last| at.saturating_sub(last.1) <= LOOK_BACK_US);
            if self.last.len() >= MOST_CONNECTIONS {
                self.last.clear();
            }
        }
        self.last.insert(key, (digest, at));
    }

    fn values(&self, cause: Cause) -> [Value; 3] {
        let text = |text: &str| Value::Text(text.to_owned());
        let digest = |number: u32| self.digests.values[number as usize].clone();
        let id = |connection: Option<i64>| connection.map_or(Value::Null, Value::Int);
        match cause {
            Cause::Itself { connection, digest: number } => [digest(number), id(connection), text("itself")],
            Cause::Executing { connection, digest: number } => {
                let digest = if number == 0 { text(UNREAD) } else { digest(number) };
                [digest, id(Some(connection)), text("executing")]
            }
            Cause::Idle { connection, digest: number } => {
                [number.map_or_else(|| text(IDLE), digest), id(Some(connection)), text("idle")]
            }
            Cause::Cycle => [text(CYCLE), Value::Null, text("cycle")],
            Cause::Unknown => [text(UNKNOWN), Value::Null, text("unknown")],
        }
    }
}

/// Read a column of numbers that may be NULL.
fn optional(reader: &mut ColumnReader, rows: usize) -> Result<Vec<Option<i64>>> {
    let ColumnReader::Int64ColumnReader(reader) = reader else { return Err(wrong_type()) };
    let (mut values, mut levels) = (Vec::new(), Vec::new());
    reader.read_records(rows, Some(&mut levels), None, &mut values)?;
    let mut values = values.into_iter();
    let found: Vec<_> = levels.iter().map(|level| (*level > 0).then(|| values.next()).flatten()).collect();
    if found.len() == rows {
        Ok(found)
    } else {
        Err(Error::Damaged("columns of different lengths".to_owned()))
    }
}
