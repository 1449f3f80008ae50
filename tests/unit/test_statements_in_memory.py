"""A thread gets a statement only if the attribution is certain, and literals are stored only on request.

agent/native/src/statements/tests.rs tests how the Rust core reads the statements.
"""

from __future__ import annotations

import gc
import json
import os
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from innoscope._native import Command, Member, StatementReader, normalize
from innoscope.cli import open_server
from innoscope.cli.commands import stacks
from innoscope.cli.main import main
from innoscope.memory.locks import layout as locks
from innoscope.memory.locks.layout import LayoutPart
from innoscope.memory.statements import attribution
from innoscope.memory.statements.attribution import Attribution, may_show_text
from innoscope.memory.statements.layout import StatementLayout, decode, installed
from innoscope.sampling.fold import StackReport
from innoscope.sampling.model import Blocked, Trust
from innoscope.sampling.render import render
from servers.catalog import SERVERS, TRIED
from unit.snapshots import IDLE, ROW_LOCK, RUNNING, snapshot_of, target, thread

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Sequence

    from innoscope._native import StatementDetails
    from innoscope.memory.locks.blockers import Waiter
    from innoscope.sampling.model import Snapshot

Counts = dict[int, int]

QUERY = 3
MEMBERS = ("first", "next", "thread", "connection", "command", "query", "text", "length", "user", "schema")


def part(*omitted: str) -> LayoutPart:
    members = {name: Member((8 * at,), 8, "unsigned") for at, name in enumerate(MEMBERS)}
    return LayoutPart(
        {"walk": "linked"}, {k: v for k, v in members.items() if k not in omitted}, {"first": 0x1000}
    )


OWN = replace(target(), pid=os.getpid())


def test_layout_opens_a_reader() -> None:
    reader = StatementLayout(part(), "debug information").open_reader(OWN)
    assert isinstance(reader, StatementReader)
    assert reader.find(frozenset({1})) == []  # nothing is mapped at the address of the list
    reader.choose([1])
    assert (reader.commands(), reader.details([], True)) == ({}, [])
    assert StatementLayout(None, "no symbol").open_reader(OWN) is None


@pytest.mark.parametrize("omitted", ["next", "user", "query"])
def test_incomplete_layout_is_refused(omitted: str) -> None:
    with pytest.raises(ValueError, match=omitted):
        StatementLayout(part(omitted), "debug information").open_reader(OWN)


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
    """A fake snapshot engine with one snapshot. Calls of ``run_counts`` return the ``counts`` in order."""

    def __init__(self, snapshot: Snapshot, before: Counts, copied: Counts, after: Counts) -> None:
        self.snapshot, self._copied = snapshot, copied
        self.counts = [before, after]
        self.during: Callable[[], None] = lambda: None

    def take_snapshot(self) -> Snapshot:
        self.during()
        return self.snapshot

    def run_counts(self, tids: Sequence[int]) -> Counts:
        return _only(self.counts.pop(0) if self.counts else {}, tids)

    def copied_run_counts(self, tids: Sequence[int]) -> Counts:
        return _only(self._copied, tids)


def _only(counts: Counts, tids: Sequence[int]) -> Counts:
    return {tid: count for tid, count in counts.items() if tid in tids}


class FakeReader:
    """A fake reader of each thread's command. ``read`` lists the threads whose texts were read."""

    def __init__(self, statements: dict[int, str]) -> None:
        self.now = {
            tid: Command(tid << 12, tid // 10, QUERY, 1000 + tid // 10, tid << 20, len(statement))
            for tid, statement in statements.items()
        }
        self.texts = dict(statements)
        self.read: list[int] = []
        self._chosen: Container[int] = ()

    def find(self, known: Container[int]) -> list[int]:
        self._chosen = [tid for tid in self.now if tid in known]
        return list(self._chosen)

    def choose(self, tids: Sequence[int]) -> None:
        self._chosen = tids

    def commands(self) -> dict[int, Command]:
        return {tid: command for tid, command in self.now.items() if tid in self._chosen}

    def details(self, commands: Sequence[Command], with_text: bool) -> list[StatementDetails]:
        tids = [command.thd >> 12 for command in commands]
        self.read += tids
        return [self._details(self.texts[tid].encode(), with_text=with_text) for tid in tids]

    def _details(self, text: bytes, *, with_text: bool) -> Any:
        texts = normalize(text, max_chars=1_024, version=80_031, mysql_9=False, certain=False)
        return SimpleNamespace(text=text if with_text else None, digest=texts, user="app", schema="shop")

    def start(self, tid: int, text: str = "SELECT 'next'") -> None:
        """Start another statement."""
        old = self.now[tid]
        self.now[tid] = Command(old.thd, old.connection, QUERY, 4711, old.start, len(text))
        self.texts[tid] = text


SNAPSHOT = snapshot_of(
    thread(71, ROW_LOCK, "row_lock"),
    thread(81, ROW_LOCK, "row_lock"),
    thread(91, RUNNING, "on_cpu", Trust.ON_CPU, state="R"),
)
LAYOUT = StatementLayout(None, "debug information")


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
    reader = FakeReader({tid: f"{statement} + {tid // 10}" for tid in (71, 81, 91)})
    engine = FakeEngine(SNAPSHOT, before, copied, after)
    source = Attribution(target(), engine, most_bytes, LAYOUT, reader)
    source.take_snapshot()
    engine.counts = [before, after]
    if changed:
        engine.during = lambda: reader.start(10 * changed + 1)
    return {one.tid: one.query for one in source.take_snapshot().threads}


def test_statement_of_a_thread_that_did_not_run_is_exact() -> None:
    found = attributed({71: 5, 81: 6}, {71: 5, 81: 7}, {71: 6, 81: 8})
    assert {tid: query.trust for tid, query in found.items()} == {71: "exact", 81: "running", 91: "running"}
    assert (found[71].connection_id, found[71].user, found[71].db) == (7, "app", "shop")
    assert found[71].command == "Query"
    assert (found[71].text, found[71].text_bytes) == ("SELECT 'secret' + 7", 19)
    assert found[71].digest_text == "SELECT ? + ?"


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ({71: 5}, {71: 9}, "SELECT 'secret' + 7"),
        ({71: 4}, {71: 5}, "SELECT 'next'"),
        ({71: 4}, {71: 6}, None),
        ({}, {}, None),
    ],
)
def test_changed_statement_is_that_of_the_side_on_which_the_thread_rested(
    before: Counts, after: Counts, text: str | None
) -> None:
    found = attributed(before, {71: 5}, after, changed=7)[71]
    assert (found and found.trust, found and found.text) == (text and "exact", text)


def test_running_thread_whose_statement_changed_has_none() -> None:
    assert attributed({}, {}, {}, changed=9)[91] is None
    assert attributed({91: 1}, {91: 1}, {91: 1}, changed=9)[91] is None, "its stack is not exact"


def _source(reader: FakeReader, snapshot: Snapshot = SNAPSHOT) -> tuple[Attribution, FakeEngine]:
    engine = FakeEngine(snapshot, {}, {}, {})
    return Attribution(target(), engine, 0, LAYOUT, reader), engine


class FakeBlockers:
    """A fake finder that reports connection 9 as the blocker of each waiter, or raises ``error`` if set.

    ``waiters`` are the waiters of the last call.
    """

    def __init__(self) -> None:
        self.waiters: Sequence[Waiter] = ()
        self.error: Exception | None = None

    def find(self, waiters: Sequence[Waiter], _: Collection[int]) -> dict[int, Blocked]:
        self.waiters = waiters
        if self.error is not None:
            raise self.error
        return {one.tid: Blocked(9, "table shop.t") for one in waiters}


def test_blocker_is_that_of_a_thread_that_has_not_run() -> None:
    blockers = FakeBlockers()
    counts = {71: 5, 81: 6}
    engine = FakeEngine(SNAPSHOT, counts, counts, {})
    reader = FakeReader(dict.fromkeys((71, 81, 91), "SELECT 1"))
    source = Attribution(target(), engine, 0, LAYOUT, reader, blockers)
    source.take_snapshot()
    engine.counts = [counts, counts, {71: 5, 81: 7}]  # 81 runs while its blocker is read
    found = {one.tid: one.blocked for one in source.take_snapshot().threads}
    assert found == {71: Blocked(9, "table shop.t"), 81: None, 91: None}
    assert {one.tid: (one.wait, one.connection, one.runs) for one in blockers.waiters} == {
        71: ("row_lock", 7, 5), 81: ("row_lock", 8, 6),
    }  # fmt: skip


def test_snapshots_continue_with_statements_if_blockers_fail() -> None:
    blockers = FakeBlockers()
    blockers.error = KeyError(4711)
    counts = {71: 5, 81: 6}
    engine = FakeEngine(SNAPSHOT, counts, counts, {})
    reader = FakeReader(dict.fromkeys((71, 81), "SELECT 1"))
    source = Attribution(target(), engine, 0, LAYOUT, reader, blockers)
    for _ in range(2):
        engine.counts = [counts, counts, counts]
        first = source.take_snapshot().threads[0]
        assert first.query is not None
        assert first.blocked is None


def test_text_of_the_same_command_is_read_once() -> None:
    reader = FakeReader({71: "SELECT 1", 81: "SELECT 2"})
    source, _ = _source(reader)
    first, second = source.take_snapshot(), source.take_snapshot()
    assert [one.query for one in first.threads] == [one.query for one in second.threads]
    assert first.threads[0] is second.threads[0], "an unchanged thread is the same object"
    assert sorted(reader.read) == [71, 81]

    reader.start(71, "UPDATE t SET a = 2")
    third = source.take_snapshot()
    digests = [one.query and one.query.digest_text for one in third.threads]
    assert digests == ["UPDATE `t` SET `a` = ?", "SELECT ?", None]
    assert sorted(reader.read) == [71, 71, 81]


def test_text_of_a_command_that_was_not_attributed_is_read_again() -> None:
    reader = FakeReader({71: "SELECT 1"})
    source, engine = _source(reader)
    assert source.take_snapshot().threads[0].query is not None
    engine.during = lambda: reader.start(71, "SELECT 1, 2")
    assert source.take_snapshot().threads[0].query is None
    engine.during = lambda: None
    reads = len(reader.read)
    query = source.take_snapshot().threads[0].query
    assert query is not None
    assert (query.digest_text, len(reader.read)) == ("SELECT ?, ...", reads + 1)


def test_nothing_is_read_after_a_snapshot_in_which_all_threads_are_idle() -> None:
    reader = FakeReader({})
    source, _ = _source(reader, snapshot_of(thread(71, IDLE, "idle")))
    chosen: list[Sequence[int]] = []
    reader.choose = chosen.append  # type: ignore[method-assign,assignment]
    assert source.take_snapshot().threads[0].query is None
    assert chosen == []


def test_no_literal_is_kept_without_texts() -> None:
    reader = FakeReader(dict.fromkeys((71, 81), "SELECT 'S3cr3tL1t3ral'"))
    source, _ = _source(reader)
    assert source.take_snapshot().threads[0].query.digest_text == "SELECT ?"  # type: ignore[union-attr]
    reader.texts = {}
    assert not [one for one in _reachable(source) if "S3cr3tL1t3ral" in repr(one)]


def _reachable(root: object) -> list[object]:
    """Return the strings and bytes that are reachable from an object, except through modules and classes."""
    seen: dict[int, object] = {}
    left = [root]
    while left:
        one = left.pop()
        if id(one) not in seen and not isinstance(one, (type, type(os))) and not callable(one):
            seen[id(one)] = one
            left += gc.get_referents(one)
    return [one for one in seen.values() if isinstance(one, (str, bytes))]


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
    report = StackReport(target())
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
