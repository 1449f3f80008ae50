//! Reads the commands that a server's connections are executing, and their texts, from the server's memory.
//!
//! The memory is untrusted, so the number of connections and the length of each text are limited.

mod connections;
mod digests;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

pub use connections::{Arrays, Connections, Walk};
pub(crate) use digests::Digests;

use crate::arch::NATIVE;
use crate::digest::{Context, Normalized};
use crate::error::Result;
use crate::memory::{self, number};

/// Maximum number of connections whose commands are read.
const MAX_COMMANDS: usize = 1_000;
/// Maximum number of other connections whose threads a scan reads.
const MAX_OTHERS: usize = 2_000;
/// Number of scans after which the threads of all connections have been read again.
const TURNS: usize = 64;
/// Number of connections that are enough to find the offset of the thread's id.
const FEW: usize = 8;
/// Maximum distance in bytes from the first to the last of the members that are read together.
const SPAN: u64 = 128;
/// Maximum length of a text, in bytes.
const MAX_TEXT: u64 = 4_096;
/// Maximum length of a name in bytes, including the zero at its end.
const MAX_NAME: u64 = 400;
/// Numbers of the commands without a statement: COM_SLEEP (waits for the next command) and COM_DAEMON.
const WITHOUT: [u64; 2] = [0, 29];
const HANDLE_BYTES: usize = 8;
const PAGE: u64 = 4096;
/// Maximum distance in bytes from the start of a THD to a `Security_context` that is stored in the THD itself.
const THD_BYTES: u64 = 1 << 15;

/// The location of a member in a THD.
#[derive(Clone, Copy)]
pub struct Field {
    /// Offset from the start of the THD, in bytes.
    pub offset: u64,
    /// Size in bytes, at most 8.
    pub size: usize,
}

/// The locations in a THD of its command, and of the names of its user and schema.
pub struct Layout {
    /// The id of the thread, or its `pthread_t`.
    pub thread: Field,
    /// The id of the connection.
    pub connection: Field,
    /// The command, a value of `enum_server_command`.
    pub command: Field,
    /// The query id, which the server never reuses.
    pub query: Field,
    /// The address of the text.
    pub text: Field,
    /// The length of the text.
    pub length: Field,
    /// Offset of the pointer to the user's name. If there are two offsets, the first locates a pointer to a
    /// structure, and the second locates the pointer to the name in that structure.
    pub user: Vec<u64>,
    /// Offsets of the pointer to the name of the default schema, in the same form as `user`.
    pub schema: Vec<u64>,
}

/// A command that a connection is executing. Equal values mean the same execution of the same command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Command {
    /// The address of the connection.
    pub thd: u64,
    /// The id of the connection.
    pub connection: u64,
    /// The number of the command.
    pub number: u64,
    /// The query id, which the server never reuses.
    pub query: u64,
    /// The address of the statement's text, or 0.
    pub start: u64,
    /// The length of the text, in bytes.
    pub length: u64,
}

/// The digest of a command's text, and the names of the connection's user and default schema.
#[derive(Debug, PartialEq, Eq)]
pub struct Details {
    /// The first 4,096 bytes of the text, if requested. They contain literals.
    pub text: Option<Vec<u8>>,
    /// The normalized text.
    pub digest: Option<Arc<Normalized>>,
    /// The name of the account that logged in; None if it is unknown.
    pub user: Option<String>,
    /// The name of the default schema; None if it is unknown.
    pub schema: Option<String>,
}

/// A connection: its THD, the value of the member `thread`, and the id of the thread (0 if unknown).
#[derive(Debug, Clone, Copy)]
struct Served {
    thd: u64,
    handle: u64,
    tid: u32,
}

/// The result of [`Reader::scan`]: all connections, and those whose threads were read, busy connections first.
pub struct Scan {
    thds: Vec<u64>,
    busy: usize,
    served: Vec<Served>,
    /// The C library's descriptors of the threads; an invalid one is empty. None if THDs store the ids.
    descriptors: Option<Vec<Vec<u8>>>,
}

/// Reads numbers and bytes from the memory of one process.
pub struct Memory {
    pid: u32,
}

impl Memory {
    /// Read the ranges. Return None for each range that is not mapped.
    fn read(&self, places: &[(u64, usize)]) -> Result<Vec<Option<Vec<u8>>>> {
        memory::read_many(self.pid, places)
    }

    /// Read `bytes` bytes at `address`, or fewer if the mapping ends earlier.
    fn prefix(&self, address: u64, bytes: usize) -> Vec<u8> {
        memory::read_some(self.pid, address, bytes).unwrap_or_default()
    }

    /// Read the unsigned number of `size` bytes at each address; 0 for an address that is not mapped.
    fn numbers(&self, addresses: impl Iterator<Item = u64>, size: usize) -> Result<Vec<u64>> {
        let places: Vec<_> = addresses.map(|address| (address, size)).collect();
        memory::read_numbers(self.pid, &places)
    }

    fn number(&self, address: u64, size: usize) -> Result<u64> {
        Ok(self.numbers(std::iter::once(address), size)?[0])
    }
}

/// Reads the commands of one server.
pub struct Reader {
    memory: Memory,
    layout: Layout,
    connections: Connections,
    /// The threads of all connections, as last read.
    served: FxHashMap<u64, Served>,
    /// The connections whose commands are read next.
    chosen: Vec<Served>,
    scans: usize,
    /// The offset of the thread's id in the C library's descriptor, once it has been found.
    tid_at: Option<usize>,
    digests: Digests,
}

impl Reader {
    /// Create a reader for process `pid`.
    pub fn new(pid: u32, layout: Layout, walk: Walk, context: Context, max_chars: usize) -> Self {
        Self {
            memory: Memory { pid },
            layout,
            connections: Connections::new(walk),
            served: FxHashMap::default(),
            chosen: Vec::new(),
            scans: 0,
            tid_at: None,
            digests: Digests::new(context, max_chars),
        }
    }

    /// List all connections, and read the threads of those that are executing a command (at most 1,000) or are
    /// new. The threads of the other connections are read in rotation, because a new connection may have reused the
    /// THD of one that has ended. While the offset of the thread's id is unknown, a few more threads are read.
    ///
    /// Errors: `Gone`, `Rights`.
    pub fn scan(&mut self) -> Result<Scan> {
        let thds = self.connections.list(&self.memory)?;
        let numbers = self.numbers(&thds, self.layout.command)?;
        self.scans += 1;
        let (mut read, mut others) = (Vec::new(), Vec::new());
        for (place, (thd, number)) in thds.iter().zip(numbers).enumerate() {
            if !WITHOUT.contains(&number) && read.len() < MAX_COMMANDS {
                read.push(*thd);
            } else if !self.served.contains_key(thd)
                || (place + self.scans).is_multiple_of(TURNS)
                || (self.tid_at.is_none() && others.len() < FEW)
            {
                others.push(*thd);
            }
        }
        let busy = read.len();
        read.extend(others.into_iter().take(MAX_OTHERS));
        let handles = self.numbers(&read, self.layout.thread)?;
        let one = |(thd, handle)| Served { thd, handle, tid: handle as u32 };
        let served: Vec<_> = read.into_iter().zip(handles).map(one).collect();
        let descriptors =
            if self.layout.thread.size == HANDLE_BYTES { Some(self.descriptors(&served)?) } else { None };
        Ok(Scan { thds, busy, served, descriptors })
    }

    /// Read the C library's descriptor of each thread.
    fn descriptors(&self, served: &[Served]) -> Result<Vec<Vec<u8>>> {
        let layout = &NATIVE.descriptor;
        let places: Vec<_> = served.iter().map(|one| (one.handle, layout.tids.end)).collect();
        let read = self.memory.read(&places)?.into_iter().map(Option::unwrap_or_default);
        let descriptors = read.zip(served).map(|(bytes, one)| {
            let points_to_itself = |at: &usize| number(&bytes[*at..at + 8]) == one.handle;
            let is_own = !bytes.is_empty() && layout.own.iter().all(points_to_itself);
            if is_own { bytes } else { Vec::new() }
        });
        Ok(descriptors.collect())
    }

    /// Choose the connections that were executing a command during the scan, and return the ids of their
    /// threads. `known` returns whether the server has a thread with this id.
    ///
    /// A thread that seems to be executing several commands is omitted.
    pub fn choose_busy(&mut self, mut scan: Scan, known: impl Fn(u32) -> bool) -> Vec<u32> {
        if let Some(descriptors) = &scan.descriptors {
            self.tid_at = offset_of_id(descriptors, known).or(self.tid_at);
            for (one, bytes) in scan.served.iter_mut().zip(descriptors) {
                one.tid = self.tid_at.map_or(0, |at| id_at(bytes, at));
            }
        }
        let mut before = std::mem::take(&mut self.served);
        self.served = scan.thds.iter().filter_map(|thd| before.remove_entry(thd)).collect();
        self.served.extend(scan.served.iter().map(|one| (one.thd, *one)));
        scan.served.truncate(scan.busy);
        self.chosen = only_of_their_thread(scan.served, |one| one.tid);
        self.chosen.iter().map(|one| one.tid).collect()
    }

    /// Choose the connections of these threads, as of the last scan.
    pub fn choose(&mut self, tids: &FxHashSet<u32>) {
        self.chosen = self.served.values().filter(|one| tids.contains(&one.tid)).copied().collect();
        self.chosen.truncate(MAX_COMMANDS);
    }

    /// Return the current commands of the chosen connections, by thread id. Connections that have ended or are
    /// served by another thread are omitted.
    ///
    /// Errors: `Gone`, `Rights`.
    pub fn commands(&self) -> Result<Vec<(u32, Command)>> {
        let layout = &self.layout;
        let table = Field { offset: 0, size: 8 };
        let fields = [
            table,
            layout.thread,
            layout.connection,
            layout.command,
            layout.query,
            layout.text,
            layout.length,
        ];
        let spans = spans(&fields);
        let of_thd = |one: &Served| {
            let thd = one.thd;
            spans.iter().map(move |span| (thd.wrapping_add(span.offset), span.size))
        };
        let places: Vec<_> = self.chosen.iter().flat_map(of_thd).collect();
        let read = self.memory.read(&places)?;
        let vtable = self.connections.vtable();
        let found = self.chosen.iter().zip(read.chunks_exact(spans.len()));
        let found = found.filter_map(|(one, read)| {
            let [table, handle, connection, number, query, start, length] =
                fields.map(|field| value(field, &spans, read));
            let is_same = handle == one.handle && vtable.is_none_or(|expected| expected == table);
            let command = Command { thd: one.thd, connection, number, query, start, length };
            (is_same && connection != 0 && !WITHOUT.contains(&number)).then_some((one.tid, command))
        });
        Ok(only_of_their_thread(found.collect(), |(tid, _)| *tid))
    }

    /// Read the digest and the names of each command, and the text if `with_text` is set.
    ///
    /// Errors: `Gone`, `Rights`.
    pub fn details(&mut self, commands: &[Command], with_text: bool) -> Result<Vec<Details>> {
        let places: Vec<_> = commands
            .iter()
            .map(|one| (one.start, if one.start == 0 { 0 } else { one.length.min(MAX_TEXT) as usize }))
            .collect();
        let digests = &mut self.digests;
        let mut texts = Vec::with_capacity(commands.len());
        memory::visit_many(self.memory.pid, &places, |text| {
            let text = text.filter(|text| !text.is_empty());
            let kept = text.filter(|_| with_text).map(<[u8]>::to_vec);
            texts.push((kept, text.map(|text| digests.of(text))));
        })?;
        let users = self.names(commands, &self.layout.user)?;
        let schemas = self.names(commands, &self.layout.schema)?;
        let found = texts.into_iter().zip(users).zip(schemas);
        Ok(found.map(|(((text, digest), user), schema)| Details { text, digest, user, schema }).collect())
    }

    /// Return the string to which a member of each THD points; None if it points to no string.
    fn names(&self, commands: &[Command], offsets: &[u64]) -> Result<Vec<Option<String>>> {
        let mut bases: Vec<u64> = commands.iter().map(|one| one.thd).collect();
        if let [first, _] = offsets {
            let contexts = self.memory.numbers(bases.iter().map(|thd| thd.wrapping_add(*first)), 8)?;
            for (base, context) in bases.iter_mut().zip(contexts) {
                // A security context outside of the THD belongs to a routine's definer, not to the connection.
                let is_inside = (1..THD_BYTES).contains(&context.wrapping_sub(*base));
                *base = if is_inside { context } else { 0 };
            }
        }
        let offset = offsets.last().copied().unwrap_or_default();
        let places = bases.iter().map(|base| if *base == 0 { 0 } else { base.wrapping_add(offset) });
        let starts = self.memory.numbers(places, 8)?;
        self.strings(&starts)
    }

    /// Return the C strings at `starts`; None for a string that is not mapped, empty or too long.
    ///
    /// A string is read in two parts, because the page after its end may not be mapped.
    fn strings(&self, starts: &[u64]) -> Result<Vec<Option<String>>> {
        let near = |start: u64| MAX_NAME.min(PAGE - start % PAGE);
        let first = starts.iter().map(|start| (*start, if *start == 0 { 0 } else { near(*start) as usize }));
        let second = starts.iter().map(|start| {
            let rest = if *start == 0 { 0 } else { MAX_NAME - near(*start) };
            (start.wrapping_add(near(*start)), rest as usize)
        });
        let places: Vec<_> = first.chain(second).collect();
        let mut parts: Vec<Vec<u8>> = Vec::with_capacity(places.len());
        memory::visit_many(self.memory.pid, &places, |bytes| {
            let first = parts.len().checked_sub(starts.len()).map(|place| &parts[place]);
            // The bytes after the end of a name may belong to a statement, so they are not copied.
            let bytes = if first.is_some_and(|first| first.ends_with(&[0])) { None } else { bytes };
            let bytes = bytes.unwrap_or_default();
            let end = bytes.iter().position(|byte| *byte == 0).map_or(bytes.len(), |end| end + 1);
            parts.push(bytes[..end].to_vec());
        })?;
        let second = parts.split_off(starts.len());
        let names = parts.into_iter().zip(second).map(|(first, second)| {
            let bytes = [first, second].concat();
            let name = bytes.strip_suffix(&[0]).filter(|name| !name.is_empty())?;
            Some(String::from_utf8_lossy(name).into_owned())
        });
        Ok(names.collect())
    }

    fn numbers(&self, thds: &[u64], field: Field) -> Result<Vec<u64>> {
        self.memory.numbers(thds.iter().map(|thd| thd.wrapping_add(field.offset)), field.size)
    }
}

/// Return ranges that together contain all fields, sorted by offset. All fields of a range begin within its first
/// [`SPAN`] bytes. An additional range costs the kernel about as much as 100 additional bytes.
fn spans(fields: &[Field]) -> Vec<Field> {
    let mut fields = fields.to_vec();
    fields.sort_by_key(|field| field.offset);
    let mut spans: Vec<Field> = Vec::new();
    for field in fields {
        let end = field.offset.saturating_add(field.size as u64);
        match spans.last_mut() {
            Some(last) if field.offset - last.offset <= SPAN => {
                last.size = last.size.max((end - last.offset) as usize);
            }
            _ => spans.push(field),
        }
    }
    spans
}

/// Return the value of a field, which lies in one of the spans; 0 if the span could not be read.
fn value(field: Field, spans: &[Field], read: &[Option<Vec<u8>>]) -> u64 {
    let place = spans.partition_point(|span| span.offset <= field.offset).saturating_sub(1);
    let start = (field.offset - spans[place].offset) as usize;
    let bytes = read[place].as_deref().unwrap_or_default();
    bytes.get(start..start + field.size).map_or(0, number)
}

/// Return the entries whose thread is known and occurs only once.
fn only_of_their_thread<T>(entries: Vec<T>, tid: impl Fn(&T) -> u32) -> Vec<T> {
    let mut times: FxHashMap<u32, usize> = FxHashMap::default();
    for entry in &entries {
        *times.entry(tid(entry)).or_default() += 1;
    }
    entries.into_iter().filter(|entry| tid(entry) != 0 && times[&tid(entry)] == 1).collect()
}

/// Return the offset of a thread's id in its descriptor: the first at which most ids are `known`. New threads may
/// not be known yet.
fn offset_of_id(descriptors: &[Vec<u8>], known: impl Fn(u32) -> bool) -> Option<usize> {
    let layout = &NATIVE.descriptor;
    let mut offsets: Vec<usize> = layout.tids.clone().step_by(4).collect();
    offsets.sort_by_key(|at| at.abs_diff(layout.tid));
    let usable = descriptors.iter().filter(|bytes| !bytes.is_empty()).count();
    offsets.into_iter().find(|at| {
        let distinct: FxHashSet<u32> = descriptors.iter().map(|bytes| id_at(bytes, *at)).collect();
        2 * distinct.into_iter().filter(|id| *id != 0 && known(*id)).count() > usable
    })
}

fn id_at(descriptor: &[u8], at: usize) -> u32 {
    descriptor.get(at..at + 4).map_or(0, |id| number(id) as u32)
}
