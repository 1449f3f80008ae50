use std::process;

use super::*;
use crate::digest::Words;

const CONTEXT: Context = Context { version: 80_031, words: Words::Mysql8, certain: false };
const FIRST: u64 = 0x100;
const QUERY: u64 = 3;
const SLEEP: u64 = 0;
/// Offsets in the test's THD.
const NEXT: u64 = 8;
const THREAD: u64 = 16;
const CONNECTION: u64 = 24;
const TEXT: u64 = 32;
const LENGTH: u64 = 40;
const NUMBER: u64 = 48;
const USER: u64 = 56;
const SCHEMA: u64 = 64;
const COMMAND: u64 = 72;
const ALL: fn(u32) -> bool = |_| true;

/// A fake server in this process: connections in a linked list. THDs, descriptors and texts have a page each.
struct Server {
    bytes: Vec<u8>,
    thds: Vec<u64>,
    tid_at: u64,
}

impl Server {
    fn new(tid_at: u64) -> Self {
        Self { bytes: vec![0; 1 << 20], thds: Vec::new(), tid_at }
    }

    fn at(&self, offset: u64) -> u64 {
        self.bytes.as_ptr() as u64 + offset
    }

    fn put(&mut self, address: u64, value: u64) {
        self.put_bytes(address, &value.to_le_bytes());
    }

    fn put_bytes(&mut self, address: u64, content: &[u8]) {
        let start = (address - self.at(0)) as usize;
        self.bytes[start..start + content.len()].copy_from_slice(content);
    }

    /// Add a connection at the end of the list, before the sentinel. Return its THD.
    fn add(&mut self, tid: u32, connection: u64, command: u64, text: &str) -> u64 {
        let page = 0x1000 * (1 + 3 * self.thds.len() as u64);
        let (thd, handle, start) = (self.at(page), self.at(page + 0x1000), self.at(page + 0x2000));
        let sentinel = self.at(0x200);
        let link = self.thds.last().map_or(self.at(FIRST), |last| last + NEXT);
        self.put(link, thd);
        for (offset, value) in [
            (NEXT, sentinel),
            (THREAD, handle),
            (CONNECTION, connection),
            (TEXT, start),
            (LENGTH, text.len() as u64),
            (NUMBER, 1_000 + connection),
            (USER, start + 0x800),
            (SCHEMA, start + 0x900),
            (COMMAND, command),
        ] {
            self.put(thd + offset, value);
        }
        self.put(handle, handle);
        self.put(handle + 16, handle);
        self.put_bytes(handle + self.tid_at, &tid.to_le_bytes());
        self.put_bytes(start, text.as_bytes());
        self.put_bytes(start + 0x800, b"app\0");
        self.put_bytes(start + 0x900, b"shop\0");
        self.thds.push(thd);
        thd
    }

    fn reader_with(&self, layout: Layout) -> Reader {
        Reader::new(process::id(), layout, Walk::Linked { first: self.at(FIRST), next: NEXT }, CONTEXT, 1_024)
    }

    fn reader(&self) -> Reader {
        self.reader_with(layout())
    }
}

fn field(offset: u64) -> Field {
    Field { offset, size: 8 }
}

fn layout() -> Layout {
    Layout {
        thread: field(THREAD),
        connection: field(CONNECTION),
        command: Field { offset: COMMAND, size: 4 },
        query: field(NUMBER),
        text: field(TEXT),
        length: field(LENGTH),
        user: vec![USER],
        schema: vec![SCHEMA],
    }
}

fn find(reader: &mut Reader, known: impl Fn(u32) -> bool) -> Vec<u32> {
    let scan = reader.scan().expect("own memory");
    reader.choose_busy(scan, known)
}

/// Return the connections that are executing a command, by thread.
fn executing(reader: &mut Reader) -> Vec<(u32, u64)> {
    find(reader, ALL);
    let mut found: Vec<_> =
        commands(reader).iter().map(|(tid, command)| (*tid, command.connection)).collect();
    found.sort_unstable();
    found
}

fn commands(reader: &Reader) -> Vec<(u32, Command)> {
    reader.commands().expect("own memory")
}

#[test]
fn commands_and_their_details_are_found_by_thread() {
    let mut server = Server::new(NATIVE.descriptor.tid as u64);
    server.add(71, 7, QUERY, "SELECT 1");
    server.add(81, 8, SLEEP, "");
    server.add(91, 9, QUERY, "");
    let mut reader = server.reader();
    assert_eq!(executing(&mut reader), [(71, 7), (91, 9)]);
    let found: Vec<Command> = commands(&reader).into_iter().map(|(_, command)| command).collect();
    assert!(reader.details(&found, false).expect("own memory").iter().all(|one| one.text.is_none()));
    let details = reader.details(&found, true).expect("own memory");
    let names = (Some("app".to_owned()), Some("shop".to_owned()));
    assert!(details.iter().all(|one| (one.user.clone(), one.schema.clone()) == names));
    let digests: Vec<_> =
        details.iter().map(|one| one.digest.as_ref().map(|digest| digest.text.as_str())).collect();
    assert_eq!(digests, [Some("SELECT ?"), None]);
    let texts: Vec<_> = details.into_iter().map(|one| one.text).collect();
    assert_eq!(texts, [Some(b"SELECT 1".to_vec()), None]);
}

#[test]
fn offset_of_the_thread_id_is_found() {
    let mut server = Server::new(0x304);
    for number in 7..10 {
        server.add(10 * number, number.into(), QUERY, "SELECT 1");
    }
    let mut reader = server.reader();
    assert_eq!(find(&mut reader, |_| false), [0; 0]);
    assert_eq!(find(&mut reader, |tid| (70..=90).contains(&tid)), [70, 80, 90]);
    assert_eq!(find(&mut reader, |_| false), [70, 80, 90], "it is remembered: all threads may be new");
}

#[test]
fn a_descriptor_without_self_pointers_is_no_thread() {
    let mut server = Server::new(NATIVE.descriptor.tid as u64);
    server.add(71, 7, QUERY, "SELECT 1");
    let thd = server.add(81, 8, QUERY, "SELECT 1");
    server.put(thd + 0x1000 + 16, 1);
    assert_eq!(executing(&mut server.reader()), [(71, 7)]);
}

#[test]
fn a_thread_with_two_commands_has_none() {
    let mut server = Server::new(NATIVE.descriptor.tid as u64);
    for (tid, connection) in [(71, 7), (71, 8), (91, 9)] {
        server.add(tid, connection, QUERY, "SELECT 1");
    }
    assert_eq!(executing(&mut server.reader()), [(91, 9)]);
}

#[test]
fn a_thread_id_may_be_stored_in_the_connection() {
    let mut server = Server::new(NATIVE.descriptor.tid as u64);
    let thd = server.add(71, 7, QUERY, "SELECT 1");
    server.put(thd + 80, 4_711);
    let thread = Field { offset: 80, size: 4 };
    assert_eq!(executing(&mut server.reader_with(Layout { thread, ..layout() })), [(4_711, 7)]);
}

#[test]
fn a_connection_of_another_thread_is_omitted() {
    let mut server = Server::new(NATIVE.descriptor.tid as u64);
    let thd = server.add(71, 7, QUERY, "SELECT 1");
    let mut reader = server.reader();
    assert_eq!(executing(&mut reader), [(71, 7)]);
    let handle = server.at(0x8_0000);
    server.put(thd + THREAD, handle);
    assert!(commands(&reader).is_empty());
}

#[test]
fn idle_connections_can_be_chosen_by_thread() {
    let mut server = Server::new(NATIVE.descriptor.tid as u64);
    let thds: Vec<u64> = (7..10).map(|one| server.add(10 * one, one.into(), SLEEP, "SELECT 1")).collect();
    let mut reader = server.reader();
    assert!(executing(&mut reader).is_empty());
    server.put(thds[0] + COMMAND, QUERY);
    server.put(thds[1] + COMMAND, QUERY);
    reader.choose(&[70, 90, 100].into_iter().collect());
    let found: Vec<u32> = commands(&reader).into_iter().map(|(tid, _)| tid).collect();
    assert_eq!(found, [70]);
}

#[test]
fn a_changed_list_is_read_anew_and_a_circular_one_ends() {
    let mut server = Server::new(NATIVE.descriptor.tid as u64);
    let first = server.add(71, 7, QUERY, "SELECT 1");
    let mut reader = server.reader();
    assert_eq!(executing(&mut reader), [(71, 7)]);
    let second = server.add(81, 8, QUERY, "SELECT 1");
    server.add(91, 9, QUERY, "SELECT 1");
    assert_eq!(executing(&mut reader), [(71, 7), (81, 8), (91, 9)]);
    server.put(server.at(FIRST), second);
    assert_eq!(executing(&mut reader), [(81, 8), (91, 9)]);
    server.put(second + NEXT, second);
    assert_eq!(executing(&mut reader), [(81, 8)]);
    server.put(server.at(FIRST), first);
    assert_eq!(executing(&mut reader), [(71, 7), (81, 8)]);
}

#[test]
fn hostile_texts_and_names_are_bounded() {
    let server = Server::new(NATIVE.descriptor.tid as u64);
    let mut reader = server.reader();
    let command = |start, length| Command { thd: 0, connection: 1, number: QUERY, query: 1, start, length };
    let mapped = server.at(0);
    let commands = [
        command(0, 1 << 40),
        command(7, 8),
        command(u64::MAX, u64::MAX),
        command(mapped, u64::MAX),
        command(mapped, 0),
    ];
    let details = reader.details(&commands, true).expect("own memory");
    let lengths: Vec<_> = details.iter().map(|one| one.text.as_ref().map(Vec::len)).collect();
    assert_eq!(lengths, [None, None, None, Some(4_096), None]);
    assert!(details.iter().all(|one| one.user.is_none() && one.schema.is_none()));
}

#[test]
fn names_may_end_on_the_next_page() {
    let mut server = Server::new(NATIVE.descriptor.tid as u64);
    let names = ["app\0SELECT 'x'", "longer than the rest of the page\0SELECT 'x'", "", "\0"];
    let mut thds = Vec::new();
    for (number, name) in (0_u64..).zip(names) {
        let thd = server.add(70 + number as u32, 7 + number, QUERY, "SELECT 1");
        let start = (server.at(0x4_0000 + 0x2000 * number) & !0xfff) + 0x1000 - 6;
        server.put_bytes(start, name.as_bytes());
        server.put(thd + USER, if name.is_empty() { 0 } else { start });
        thds.push(thd);
    }
    let endless = server.at(0x8_0000);
    server.put_bytes(endless, &[b'x'; 1_000]);
    server.put(thds[0] + SCHEMA, endless);
    let command = |thd| Command { thd, connection: 1, number: QUERY, query: 1, start: 0, length: 0 };
    let commands: Vec<Command> = thds.into_iter().map(command).collect();
    let details = server.reader().details(&commands, false).expect("own memory");
    let users: Vec<_> = details.iter().map(|one| one.user.as_deref()).collect();
    assert_eq!(users, [Some("app"), Some("longer than the rest of the page"), None, None]);
    assert_eq!(details[0].schema, None);
}

#[test]
fn arbitrary_memory_has_no_statements() {
    for pattern in [0xff, 0x00, 0x41, 0x7f] {
        let garbage = vec![pattern; 1 << 16];
        let start = garbage.as_ptr() as u64;
        let arrays = Arrays {
            first: start,
            arrays: 64,
            bytes: 0x1e8,
            items: 8,
            count: 16,
            inline: Some(Field { offset: 4, size: 4 }),
            table: start,
        };
        for walk in
            [Walk::Linked { first: start, next: 8 }, Walk::Tree { first: start }, Walk::Arrays(arrays)]
        {
            let mut reader = Reader::new(process::id(), layout(), walk, CONTEXT, 1_024);
            find(&mut reader, ALL);
            assert!(commands(&reader).is_empty());
        }
    }
}

#[test]
fn the_account_of_a_definer_is_not_that_of_the_connection() {
    let mut server = Server::new(NATIVE.descriptor.tid as u64);
    let thds = [server.add(71, 7, QUERY, "SELECT 1"), server.add(81, 8, QUERY, "SELECT 1")];
    let name = server.at(0x2800);
    let inside = thds[0] + 0x200;
    let outside = thds[1] + THD_BYTES + 0x200;
    for context in [inside, outside] {
        server.put(context + 8, name);
    }
    server.put(thds[0] + 0x100, inside);
    server.put(thds[1] + 0x100, outside);
    server.put_bytes(name, b"app\0");
    let mut reader = server.reader_with(Layout { user: vec![0x100, 8], ..layout() });
    find(&mut reader, ALL);
    let commands: Vec<Command> = commands(&reader).into_iter().map(|(_, command)| command).collect();
    let users: Vec<_> =
        reader.details(&commands, true).expect("own memory").into_iter().map(|one| one.user).collect();
    assert_eq!(users, [Some("app".to_owned()), None]);
}

#[test]
fn neighboring_members_are_read_together() {
    let fields = [field(0x518), Field { offset: 0x1918, size: 4 }, field(0x520), field(0)];
    let found: Vec<_> = spans(&fields).into_iter().map(|span| (span.offset, span.size)).collect();
    assert_eq!(found, [(0, 8), (0x518, 16), (0x1918, 4)]);
    let read = [None, Some((0..16).collect()), Some(vec![7, 0, 0, 0])];
    let numbers = fields.map(|field| value(field, &spans(&fields), &read));
    assert_eq!(numbers, [0x0706_0504_0302_0100, 7, 0x0f0e_0d0c_0b0a_0908, 0]);
}

#[test]
fn trees_are_walked_level_by_level_and_circular_ones_end() {
    let mut server = Server::new(NATIVE.descriptor.tid as u64);
    let (set, nodes) = (server.at(0x300), [0x1000, 0x2000, 0x3000].map(|offset| server.at(offset)));
    server.put(server.at(FIRST), set);
    server.put(set + 16, nodes[0]);
    for (node, left, right, value) in
        [(nodes[0], nodes[1], nodes[2], 71), (nodes[1], 0, 0, 72), (nodes[2], 0, 0, 73)]
    {
        server.put(node + 16, left);
        server.put(node + 24, right);
        server.put(node + 32, value);
    }
    let memory = Memory { pid: process::id() };
    let mut connections = Connections::new(Walk::Tree { first: server.at(FIRST) });
    assert_eq!(connections.list(&memory).expect("own memory"), [71, 72, 73]);
    server.put(nodes[2] + 16, nodes[0]);
    server.put(nodes[2] + 24, nodes[0]);
    assert_eq!(connections.list(&memory).expect("own memory"), [71, 72, 73]);
}

#[test]
fn arrays_store_their_elements_in_place_or_behind_a_pointer() {
    let mut server = Server::new(NATIVE.descriptor.tid as u64);
    let (object, behind) = (server.at(0x1000), server.at(0x3000));
    server.put(server.at(FIRST), object);
    server.put_bytes(object + 4, &2_i32.to_le_bytes());
    server.put(object + 8, 71);
    server.put(object + 16, 72);
    server.put_bytes(object + 0x1e8 + 4, &(-1_i32).to_le_bytes());
    server.put(object + 0x1e8 + 8, behind);
    server.put(object + 0x1e8 + 16, 2);
    server.put(behind, 72);
    server.put(behind + 8, 73);
    let walk = Walk::Arrays(Arrays {
        first: server.at(FIRST),
        arrays: 2,
        bytes: 0x1e8,
        items: 8,
        count: 16,
        inline: Some(Field { offset: 4, size: 4 }),
        table: 0x500,
    });
    let mut connections = Connections::new(walk);
    assert_eq!(connections.vtable(), Some(0x510));
    let found = connections.list(&Memory { pid: process::id() }).expect("own memory");
    assert_eq!(found, [71, 72, 73]);
}
