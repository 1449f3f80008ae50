"""The journal is append-only, synced to disk and readable only by root. Every line is validated."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from innoscope.common.errors import BadFile
from innoscope.toggles import journal_format, lock
from innoscope.toggles.journal import Journal
from innoscope.toggles.model import ChangeRefused, ChangeStep
from unit.toggling import entry

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def journal(memory_folder: Path) -> Journal:
    return Journal(memory_folder / "state")


def lines(journal: Journal) -> list[bytes]:
    return journal.path.read_bytes().splitlines(keepends=True)


def test_a_missing_journal_has_no_entries(journal: Journal) -> None:
    assert journal.entries() == ()


def test_an_entry_is_read_as_it_was_written(journal: Journal) -> None:
    steps = (
        ChangeStep("a", True, False, 0x7FFF_0000_1000, 1, "unsigned", ".dynsym"),
        ChangeStep("b", 75.5, 10.0, 0xFFFF_FFFF_FFFF_FFF8, 8, "float"),
        ChangeStep("c", "ON", "OFF"),
        ChangeStep("call", None, None),
    )
    written = entry(why="Grund: zu langsam", until=2000.5, steps=steps)
    journal.intend(written)

    assert journal.entries() == (written,)


def test_only_the_owner_can_read_the_journal(journal: Journal) -> None:
    journal.intend(entry())

    assert stat.S_IMODE(journal.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(journal.folder.stat().st_mode) == 0o700


def test_invalid_characters_are_replaced_and_long_text_is_cut(journal: Journal) -> None:
    journal.intend(entry("one", why="too\udcffslow" + "!" * 5000))
    journal.conclude("one", "failed", "\udcff" * 5000)

    (read,) = journal.entries()
    assert read.why is not None
    assert read.why.startswith("too?slow!")
    assert read.reason == "?" * 1000


def test_an_entry_that_could_not_be_read_back_is_not_written(journal: Journal) -> None:
    for wrong in (entry(value="\udcff"), entry(who=""), entry(at=float("1e300"))):
        with pytest.raises(ChangeRefused, match="invalid entry"):
            journal.intend(wrong)

    assert journal.entries() == ()


def test_results_undos_and_notes_are_merged_into_their_entry(journal: Journal) -> None:
    journal.intend(entry("one"))
    journal.conclude("one", "done")
    journal.note("one", "server is stopped")
    journal.intend(entry("two", undoes="one", why="enough"))
    journal.conclude("two", "done")
    journal.intend(entry("three"))
    journal.conclude("three", "failed", "no such variable", put_back=True)
    journal.intend(entry("four"))

    one, two, three, four = journal.entries()

    assert (one.outcome, one.undone_by, one.notes) == ("undone", "two", ("server is stopped",))
    assert (two.outcome, two.undoes) == ("done", "one")
    assert (three.outcome, three.reason, three.put_back) == ("failed", "no such variable", True)
    assert four.outcome == "intended"
    assert [one.may_be_in_force for one in (one, two, three, four)] == [False, False, False, True]


def test_a_line_is_one_write_and_is_synced(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def noted(name: str) -> None:
        real = getattr(os, name)

        def call(*given: Any) -> Any:
            calls.append(name)
            return real(*given)

        monkeypatch.setattr(os, name, call)

    noted("write")
    noted("fsync")
    journal.intend(entry("one"))
    first, calls[:] = list(calls), []
    journal.conclude("one", "done")

    assert first[-3:] == ["write", "fsync", "fsync"], "the new file and its folder"
    assert calls == ["write", "fsync"]


def test_a_truncated_last_line_is_reported_and_left_out(journal: Journal) -> None:
    journal.intend(entry("one"))
    whole = journal.path.read_bytes()
    for length in range(1, len(whole)):
        journal.path.write_bytes(whole + whole[:length])
        reading = journal.read()
        assert [one.id for one in reading.entries] == ["one"]
        assert "truncated" in reading.notes[0]


@pytest.mark.parametrize(
    ("damage", "words"),
    [(b'{"v":1,"event":"res', "truncated"), (b"\0" * 80 + b"\n", "line 2 is damaged")],
    ids=["truncated", "zeros"],
)
def test_a_damaged_last_line_is_reported_and_does_not_prevent_new_entries(
    journal: Journal, damage: bytes, words: str
) -> None:
    journal.intend(entry("one"))
    with journal.path.open("ab") as file:
        file.write(damage)
    (note,) = journal.read().notes
    assert words in note
    journal.conclude("one", "done")
    journal.intend(entry("two"))

    reading = journal.read()
    assert [(one.id, one.outcome) for one in reading.entries] == [("one", "done"), ("two", "intended")]
    assert len(reading.notes) == 1


def test_a_damaged_line_in_the_middle_is_named(journal: Journal) -> None:
    for name in ("one", "two", "three"):
        journal.intend(entry(name))
    first, second, third = lines(journal)
    journal.path.write_bytes(first + second[:40] + b"?" + second[41:] + third)

    with pytest.raises(BadFile, match="line 2 is damaged") as caught:
        journal.read()
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"at":1000.0', b'"at":NaN'),
        (b'"at":1000.0', b'"at":1e999'),
        (b'"pid":7', b'"pid":-7'),
        (b'"pid":7', b'"pid":true'),
        (b'"pid":7', b'"pid":7.0'),
        (b'"pid":7', b'"pid":9223372036854775808'),
        (b'"who":"ann"', b'"who":"a\\u001bn"'),
        (b'"who":"ann"', b'"who":""'),
        (b'"who":"ann"', b'"who":"' + b"a" * 4097 + b'"'),
        (b'"why":null,', b""),
        (b'"start_time":', b'"more":1,"start_time":'),
        (b'"setting":', b'"more":1,"setting":'),
        (b'"new":7', b'"new":18446744073709551616'),
        (b'"new":7', b'"new":-Infinity'),
        (b'"pid":7', b'"pid":' + b"9" * 5000),
        (b'"setting":"spin"', b'"setting":"\\ud800"'),
        (b'"address":null', b'"address":18446744073709551616'),
        (b'"size":null', b'"size":3'),
        (b'"undoes":null', b'"undoes":"nobody"'),
        (b'"steps":[', b'"steps":[[],'),
        (b'"why":null', b'"why":null,"more":1'),
        (b'"v":1', b'"v":2'),
        (b'"event":"intent"', b'"event":["intent"]'),
        (b'"who":"ann"', b'"who":' + b"[" * 50_000),
    ],
)
def test_an_invalid_value_makes_its_line_damaged(journal: Journal, old: bytes, new: bytes) -> None:
    journal.intend(entry("one"))
    (line,) = lines(journal)
    assert old in line
    journal.intend(entry("two"))
    journal.path.write_bytes(line.replace(old, new, 1) + lines(journal)[1])

    with pytest.raises(BadFile, match="line 1 is damaged"):
        journal.read()


@pytest.mark.parametrize("second", ["intent", "result"])
def test_a_duplicate_intent_or_result_is_damaged(journal: Journal, second: str) -> None:
    journal.intend(entry("one"))
    journal.conclude("one", "done")
    intent, result = lines(journal)
    journal.path.write_bytes(intent + result + (intent if second == "intent" else result) + intent)

    with pytest.raises(BadFile, match="line 3 is damaged"):
        journal.read()


def test_concurrent_writers_do_not_mix_their_lines(journal: Journal) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: journal.intend(entry(f"n{number}")), range(200)))

    assert {one.id for one in journal.entries()} == {f"n{number}" for number in range(200)}


def test_a_journal_that_others_can_write_is_refused(journal: Journal) -> None:
    journal.intend(entry("one"))
    journal.path.chmod(0o620)

    with pytest.raises(BadFile, match="writable by other users"):
        journal.read()
    with pytest.raises(ChangeRefused, match="writable by other users"):
        journal.intend(entry("two"))
    assert journal.problem() is not None


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_link_pipe_or_folder_in_its_place_is_refused(journal: Journal, tmp_path: Path, kind: str) -> None:
    journal.folder.mkdir(mode=0o700)
    if kind == "link":
        journal.path.symlink_to(tmp_path / "elsewhere")
    elif kind == "pipe":
        os.mkfifo(journal.path, 0o600)
    else:
        journal.path.mkdir()

    with pytest.raises(BadFile):
        journal.read()
    with pytest.raises(ChangeRefused):
        journal.intend(entry())
    assert journal.problem() is not None


def test_each_server_has_its_own_lock(tmp_path: Path) -> None:
    server = entry().server
    other = replace(server, start_time=100)
    with lock.held(tmp_path, server), lock.held(tmp_path, other):
        with (
            pytest.raises(ChangeRefused, match=f"process {os.getpid()} is changing server 7") as caught,
            lock.held(tmp_path, server),
        ):
            pass
        assert str(os.getpid()) in str(caught.value.remedy)
    with lock.held(tmp_path, server):
        pass


def test_lines_of_every_kind_parse() -> None:
    for line in (
        journal_format.intent_line(entry()),
        journal_format.result_line("a", 1.0, "done", None, False),
        journal_format.note_line("a", 1.0, "x"),
        journal_format.TORN_LINE,
    ):
        assert journal_format.parse(line).v == 1
