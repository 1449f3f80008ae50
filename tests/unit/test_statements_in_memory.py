"""Statements are read from the memory of a synthetic process, within bounds and only if they are certain."""

from __future__ import annotations

import ctypes
import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from innoscope._native import Member
from innoscope.cli import open_server
from innoscope.cli.commands import stacks
from innoscope.cli.main import main
from innoscope.memory.locks import layout as locks
from innoscope.memory.locks.layout import Part, ProcessMemory
from innoscope.memory.statements import attribution, reader
from innoscope.memory.statements.attribution import Attribution, may_show_text
from innoscope.memory.statements.layout import StatementLayout, decode, installed
from innoscope.sampling.fold import Report
from innoscope.sampling.model import Trust
from innoscope.sampling.render import render
from servers.catalog import SERVERS, TRIED
from unit.snapshots import ROW_LOCK, RUNNING, snapshot_of, target, thread
from unit.test_owners_in_memory import FakeMemory

if TYPE_CHECKING:
    from collections.abc import Callable

    from innoscope.sampling.model import Snapshot

Counts = dict[int, int]

MEMBERS = {
    "first": 0, "next": 8, "thread": 16, "connection": 24, "text": 32, "length": 40, "query": 48, "user": 56,
    "schema": 64,
}  # fmt: skip
FIRST, QUERY, SLEEP = 0x100, 3, 0
#: Offset of tid in glibc's struct pthread, and in another C library.
TID, OTHER_TID = 0x2D0, 0x304


def part(**changes: Member) -> Part:
    members = {name: Member((offset,), 8, "unsigned") for name, offset in MEMBERS.items()}
    members["command"] = Member((72,), 4, "unsigned")
    return Part({"walk": "linked"}, {**members, **changes}, {"first": FIRST})


class Connections:
    """A list of connections in fake memory."""

    def __init__(self, tid_at: int = TID) -> None:
        self.memory = FakeMemory()
        self._tid_at = tid_at
        self._last = FIRST
        self._count = 0

    def add(self, tid: int, connection: int, text: str = "SELECT 'x'", command: int = QUERY) -> int:
        """Add a connection, end the list with a sentinel, and return the address of the THD."""
        self._count += 1
        thd, handle, start = (base + 0x1000 * self._count for base in (0x100_0000, 0x900_0000, 0x500_0000))
        self.memory.put_bytes(handle, bytes(0x400))
        self.memory.put(handle, handle, 0, handle)
        self.memory.put(handle + self._tid_at, tid, size=4)
        raw = text.encode()
        self.memory.put(thd, 0, 0, handle, connection, start if raw else 0, len(raw), 1000 + connection)
        self.memory.put(thd + 56, start + 0x800, start + 0x900)
        self.memory.put(thd + 72, command, size=4)
        self.memory.put_bytes(start, raw)
        self.memory.put_bytes(start + 0x800, b"app\0".ljust(reader._NAME_BYTES, b"\0"))
        self.memory.put_bytes(start + 0x900, b"shop\0".ljust(reader._NAME_BYTES, b"\0"))
        self.memory.put(self._last, thd)
        self.memory.put(thd + 8, 0xF000)
        self.memory.put(0xF008, 0)
        self._last = thd + 8
        return thd

    def read(self, *known: int) -> dict[int, reader.Statement]:
        return reader.read(self.memory, part(), known)


def test_commands_are_found_by_thread() -> None:
    connections = Connections()
    connections.add(71, 7, "SELECT 1")
    connections.add(81, 8, command=SLEEP)
    connections.add(91, 9, "UPDATE t SET a = 2")

    found = connections.read(71, 81, 91)

    assert {tid: one.command.connection for tid, one in found.items()} == {71: 7, 91: 9}
    assert [one.text for one in found.values()] == [b"SELECT 1", b"UPDATE t SET a = 2"]
    assert {(one.user, one.schema) for one in found.values()} == {("app", "shop")}


def test_offset_of_the_thread_id_is_found() -> None:
    connections = Connections(tid_at=OTHER_TID)
    for number in (7, 8, 9):
        connections.add(10 * number, number)
    assert set(connections.read(70, 80, 90)) == {70, 80, 90}


def test_descriptor_without_self_pointers_is_not_a_thread() -> None:
    connections = Connections()
    connections.add(71, 7)
    thd = connections.add(81, 8)
    handle = connections.memory.number(thd + 16)
    connections.memory.put(handle + 16, handle + 8)
    assert set(connections.read(71, 81)) == {71}


def test_thread_with_two_commands_has_none() -> None:
    connections = Connections()
    for number in (7, 8, 9):
        connections.add(71 if number < 9 else 91, number)
    assert set(connections.read(71, 91)) == {91}


def test_thread_id_may_be_stored_in_the_connection() -> None:
    connections = Connections()
    thd = connections.add(71, 7)
    connections.memory.put(thd + 80, 4711, size=4)
    of_mariadb = part(thread=Member((80,), 4, "unsigned"))
    assert set(reader.read(connections.memory, of_mariadb, {4711})) == {4711}


def test_circular_list_ends() -> None:
    connections = Connections()
    thd = connections.add(71, 7)
    connections.memory.put(thd + 8, thd)
    assert [one.command.connection for one in connections.read(71).values()] == [7]


def test_number_of_commands_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MOST_STATEMENTS", 3)
    connections = Connections()
    for number in range(1, 6):
        connections.add(70 + number, number)
    assert len(connections.read(*range(71, 77))) == 3


@pytest.mark.parametrize(
    ("start", "length", "expected"),
    [
        (0, 1 << 40, None),
        (0x7777, 8, None),
        ((1 << 64) - 1, 8, None),
        (0x5000, 1 << 63, 4096),
        (0x5000, 0, None),
    ],
)
def test_hostile_texts_are_bounded(start: int, length: int, expected: int | None) -> None:
    memory = FakeMemory()
    memory.put_bytes(0x5000, b"x" * 5000)
    [raw] = reader.texts(memory, [reader.Command(1, 1, QUERY, 1, start, length)])
    assert (raw and len(raw)) == expected


@pytest.mark.parametrize("pattern", [b"\xff", b"\x00", b"\x41", b"\x7f"])
def test_arbitrary_memory_has_no_statements(pattern: bytes) -> None:
    """Read lists and connections in this process that consist of one repeated byte."""
    thd = ctypes.create_string_buffer(pattern * 0x1000)
    root = ctypes.create_string_buffer(ctypes.addressof(thd).to_bytes(8, "little"))
    own = Part(part().options, part().members, {"first": ctypes.addressof(root)})
    memory = ProcessMemory(os.getpid())
    assert reader.read(memory, own, {os.getpid()}) == {}
    highest = (1 << 64) - 1
    command = reader.Command(highest, 1, QUERY, 1, highest, highest)
    assert reader.texts(memory, [command]) == [None]
    assert reader.names(memory, own, "user", [highest, ctypes.addressof(thd)]) == [None, None]


def test_names_end_at_the_end_of_a_mapping() -> None:
    memory = FakeMemory()
    memory.put(0x1000 + 56, 0x5FFA, 0)
    memory.put(0x2000 + 56, 0x8000, 0)
    memory.put_bytes(0x5FFA, b"root\0x")
    memory.put_bytes(0x8000, b"endless" * 100)
    assert reader.names(memory, part(), "user", [0x1000, 0x2000, 0x3000]) == ["root", None, None]


def test_account_of_a_definer_is_not_that_of_the_connection() -> None:
    connections = Connections()
    thds = [connections.add(71, 7), connections.add(81, 8)]
    start = connections.memory.number(thds[0] + 56)
    inside, outside = thds[0] + 0x200, 0xA00_0000
    for context in (inside, outside):
        connections.memory.put(context + 8, start)
    connections.memory.put(thds[0] + 0x100, inside)
    connections.memory.put(thds[1] + 0x100, outside)
    of_mariadb = part(user=Member((0x100, 8), 8, "unsigned"))
    assert reader.names(connections.memory, of_mariadb, "user", thds) == ["app", None]


@pytest.mark.parametrize(
    ("code", "pattern", "expected"),
    [
        ("48 8b 87 18 3f 00 00 c3", "48 8b 87 @4 c3", (0x3F18,)),
        ("f3 0f 1e fa 48 8b 87 18 3f 00 00 c3", "48 8b 87 @4 c3", (0x3F18,)),
        ("48 8b 87 18 3f 00 00 90 c3", "48 8b 87 @4 c3", None),
        ("48 8b 87 18 3f 00 7f c3", "48 8b 87 @4 c3", None),
        ("48 8d 47 f8 c3", "48 8d 47 @1 c3", None),
        ("55 e8 01 02 03 04 89 83 28 3f 00 00 5d", "* e8 .. .. .. .. 89 83 @4", (0x3F28,)),
        ("89 83 28 3f 00 00 89 83 2c 3f 00 00", "* 89 83 @4", None),
        ("48 8b 87 f8 25 00 00 48 8b 40 08 c3", "48 8b 87 @4 48 8b 40 @1 c3", (0x25F8, 8)),
        ("", "48 8b 87 @4 c3", None),
    ],
)
def test_offsets_are_decoded(code: str, pattern: str, expected: tuple[int, ...] | None) -> None:
    assert decode(bytes.fromhex(code), [pattern]) == expected


@pytest.mark.parametrize("name", [name for name in SERVERS if name not in TRIED])
def test_catalog_covers_the_test_servers(name: str) -> None:
    spec = SERVERS[name]
    version = tuple(int(part) for part in spec.version.split(".") if part)
    version = (9, 7, 4) if name == "mysql-9.7" else version
    assert any(one.fits(spec.flavour, version) for one in installed().servers)
    assert any(one.fits(spec.flavour, version) and one.sessions for one in locks.servers())


class FakeEngine:
    """A fake engine with one snapshot. ``counts`` lists the results of ``at_rest``, in order."""

    def __init__(self, snapshot: Snapshot, before: Counts, copied: Counts, after: Counts) -> None:
        self._snapshot, self._copied = snapshot, copied
        self.counts = [before, after]
        self.during: Callable[[], None] = lambda: None

    def take_snapshot(self) -> Snapshot:
        self.during()
        return self._snapshot

    def at_rest(self) -> Counts:
        return self.counts.pop(0)

    def copied_at_rest(self) -> Counts:
        return self._copied


SNAPSHOT = snapshot_of(
    thread(71, ROW_LOCK, "row_lock"),
    thread(81, ROW_LOCK, "row_lock"),
    thread(91, RUNNING, "on_cpu", Trust.ON_CPU, state="R"),
)


def attributed(
    before: Counts,
    copied: Counts,
    after: Counts,
    *,
    most_bytes: int = 160,
    changed: int | None = None,
    statement: str = "SELECT 'secret'",
) -> dict[int, Any]:
    """Return the query of each thread.

    If ``changed`` is given, that connection starts another statement during the snapshot.
    """
    connections = Connections()
    thds = {one: connections.add(10 * one + 1, one, f"{statement} + {one}") for one in (7, 8, 9)}
    engine = FakeEngine(SNAPSHOT, before, copied, after)
    layout = StatementLayout(part(), "debug information")
    source = Attribution(target(), engine, most_bytes, layout, connections.memory)
    source.take_snapshot()
    engine.counts = [before, after]
    if changed:
        engine.during = lambda: connections.memory.put(thds[changed] + 48, 4711)
    return {one.tid: one.query for one in source.take_snapshot().threads}


def test_statement_of_a_thread_that_did_not_run_is_exact() -> None:
    found = attributed({71: 5, 81: 6}, {71: 5, 81: 7}, {71: 6, 81: 8})
    assert {tid: query.trust for tid, query in found.items()} == {71: "exact", 81: "running", 91: "running"}
    assert (found[71].connection_id, found[71].user, found[71].db) == (7, "app", "shop")
    assert found[71].command == "Query"
    assert (found[71].text, found[71].text_bytes) == ("SELECT 'secret' + 7", 19)
    assert found[71].digest_text == "SELECT ? + ?"


@pytest.mark.parametrize(
    ("before", "after", "query"),
    [({71: 5}, {71: 9}, 1007), ({71: 4}, {71: 5}, 4711), ({71: 4}, {71: 6}, None), ({}, {}, None)],
)
def test_changed_statement_is_taken_from_the_side_with_equal_switch_counts(
    before: Counts, after: Counts, query: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[int] = []
    original = Attribution._query

    def noting(self: Attribution, statement: reader.Statement, trust: str) -> Any:
        chosen.append(statement.command.query)
        return original(self, statement, trust)

    monkeypatch.setattr(Attribution, "_query", noting)
    found = attributed(before, {71: 5}, after, changed=7)
    assert (found[71] and found[71].trust) == (query and "exact")
    assert query is None or query in chosen


def test_running_thread_whose_statement_changed_has_none() -> None:
    assert attributed({}, {}, {}, changed=9)[91] is None
    assert attributed({91: 1}, {91: 1}, {91: 1}, changed=9)[91] is None, "its stack is not exact"


def test_text_is_cut_and_can_be_withheld() -> None:
    assert attributed({}, {}, {}, most_bytes=6)[71].text == "SELECT"
    withheld = attributed({}, {}, {}, most_bytes=0)[71]
    assert (withheld.text, withheld.digest_text) == (None, "SELECT ? + ?")


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE USER a IDENTIFIED BY 'secret'",
        "SET PASSWORD = 'secret'",
        "CHANGE MASTER TO master_password='secret'",
    ],
)
def test_text_that_may_contain_a_password_is_withheld(statement: str) -> None:
    query = attributed({}, {}, {}, statement=statement)[71]
    assert query.text is None
    assert "secret" not in query.digest_text


def test_only_root_and_the_servers_user_see_text(monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.getpid()
    assert may_show_text(own)
    monkeypatch.setattr(os, "geteuid", lambda: 1 + os.getuid())
    assert not may_show_text(own)
    assert not may_show_text(1 << 30)


def test_text_is_sanitized_and_running_threads_are_marked() -> None:
    query = replace(attributed({}, {}, {})[71], text="SELECT '\x1b[2J\u202e'")
    report = Report(target())
    report.add(snapshot_of(replace(thread(71, ROW_LOCK, "row_lock"), query=query)))
    by_thread = list(render(report, "text", by="thread"))
    assert "  connection 7  app  shop  Query · running" in by_thread
    assert r"  SELECT '\x1b[2J\u202e'" in by_thread
    assert any("# 1× [running] SELECT ? + ?" in line for line in render(report, "text"))


@pytest.fixture
def fake_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_server, "Engine", lambda *_, **__: FakeEngine(SNAPSHOT, {}, {}, {}))
    monkeypatch.setattr(stacks, "find_one", lambda pid, socket, port: target())
    monkeypatch.setattr(attribution, "learn", lambda _: StatementLayout(None, "no symbol server_threads"))
    monkeypatch.delenv("DEBUGINFOD_URLS", raising=False)


@pytest.mark.usefixtures("fake_engine")
def test_unknown_build_has_stacks_and_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stacks", "--statements", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert "statements are not available for this build: no symbol server_threads" in document["notes"]
    assert [one["query"] for one in document["threads"]] == [None, None, None]


@pytest.mark.usefixtures("fake_engine")
@pytest.mark.parametrize("option", [["--queries"], ["--method", "ptrace"], ["--statement-length", "4097"]])
def test_contradictory_options_are_refused(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stacks", "--statements", *option]) == 2
    assert option[0] in capsys.readouterr().err
