"""Offsets are cached and numbers are read correctly; the test process itself acts as the server."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from innoscope._native import Member, Members, Symbol
from innoscope.common.cache import Cache
from innoscope.common.errors import NoSuchProcess
from innoscope.memory import layout, numbers
from innoscope.memory.layout import Debug
from innoscope.memory.numbers import Term
from innoscope.memory.plan import MemoryPlan, PlannedValue
from innoscope.memory.reader import MemoryReader, value_of
from innoscope.target.symbols import packs
from innoscope.target.symbols.packs import PackLayout
from unit.snapshots import target

if TYPE_CHECKING:
    from pathlib import Path

    from innoscope.memory.catalog import Clock
    from innoscope.target.model import Target

PATHS = ["pool.count", "pool.gone"]
FOUND = {"pool.count": Member((8,), 4, "unsigned")}
MISSING = {"pool.gone": "this build has no member gone"}
MEMBERS = Members(FOUND, MISSING)
TARGET = target(pid=os.getpid(), executable="/mysqld")


@dataclass
class FakeGlobals:
    """A stand-in for ``_native.Globals``."""

    symbols: dict[str, Symbol]
    source: str


GLOBALS = FakeGlobals({"pool": Symbol(4096, 16)}, "symtab")


class Native:
    """A fake core that counts how often it reads debug information."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: Members | None = MEMBERS) -> None:
        from innoscope import _native

        self.reads = 0
        self.answer = answer
        monkeypatch.setattr(_native, "globals_in_process", lambda *_: GLOBALS)
        monkeypatch.setattr(_native, "members_in_process", self._members)

    def _members(self, *_: object) -> Any:
        self.reads += 1
        return self.answer


def _learn(folder: Path, paths: list[str] = PATHS, server: Target = TARGET) -> layout.MemoryLayout:
    return layout.learn(server, ["pool"], paths, Debug(), Cache("layouts", 4, folder))


def test_debug_information_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    native = Native(monkeypatch)

    first, second = _learn(tmp_path / "new" / "folder"), _learn(tmp_path / "new" / "folder")

    assert native.reads == 1
    assert (first.cached, second.cached) == (False, True)
    assert first == replace(second, cached=False)
    assert second.members == {"pool.count": Member((8,), 4, "unsigned")}
    assert second.missing == MISSING


def test_other_members_or_another_build_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    native = Native(monkeypatch)
    _learn(tmp_path)

    _learn(tmp_path, [*PATHS, "pool.more"])
    _learn(tmp_path, server=replace(TARGET, build_id="cd34"))
    _learn(tmp_path, server=replace(TARGET, build_id=None))  # identified by its executable instead

    assert native.reads == 4


def test_missing_debug_information_is_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that later attempts search again, because the debug package may be installed in the meantime."""
    native = Native(monkeypatch, None)
    assert not _learn(tmp_path).described
    native.answer = MEMBERS
    assert _learn(tmp_path).described


@pytest.mark.parametrize(
    ("pack", "described", "missing"),
    [
        (PackLayout({}, {}, {}), False, {}),  # made from a file without debug information
        (PackLayout(FOUND, {}, {}), True, {"pool.gone": layout._NOT_IN_PACK}),
        (PackLayout(FOUND, MISSING, {}), True, MISSING),
    ],
)
def test_reasons_why_a_pack_lacks_members(
    pack: PackLayout,
    described: bool,
    missing: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Native(monkeypatch, None)
    monkeypatch.setattr(packs, "layout", lambda _: pack)

    found = _learn(tmp_path)

    assert (found.described, found.from_pack, found.missing) == (described, described, missing)


def test_members_of_missing_symbols_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    native = Native(monkeypatch)

    _learn(tmp_path)
    assert _learn(tmp_path, [*PATHS, "no_such_pool.count"]).cached

    assert native.reads == 1


class _Pool(ctypes.Structure):
    _fields_ = (("count", ctypes.c_uint32), ("pct", ctypes.c_double), ("left", ctypes.c_int64))


def test_numbers_are_read_through_pointers_and_summed() -> None:
    pools = (_Pool * 3)(_Pool(1, 0.5, -1), _Pool(2, 0.25, -2), _Pool(4, 0.125, -4))
    first, count = ctypes.c_void_p(ctypes.addressof(pools)), ctypes.c_uint64(3)
    null = ctypes.c_void_p(None)
    at, length = ctypes.addressof(first), Term(ctypes.addressof(count), Member((0,), 8, "unsigned"))
    terms = {
        "one": Term(ctypes.addressof(pools), Member((0,), 4, "unsigned")),
        "through": Term(at, Member((0, 16), 8, "signed")),
        "all": Term(at, Member((0, 0), 4, "unsigned", 24, 0), length),
        "halves": Term(at, Member((0, 8), 8, "float", 24, 3)),
        "null": Term(ctypes.addressof(null), Member((0, 8), 8, "unsigned")),
        "nowhere": Term(16, Member((0,), 8, "unsigned")),
        "beyond": Term(
            at,
            Member((0, 0), 4, "unsigned", 24, 0),
            Term(ctypes.addressof(null), Member((0,), 8, "unsigned")),
        ),
    }

    found = numbers.read(os.getpid(), terms.values())

    assert {name: found[term] for name, term in terms.items()} == {
        "one": 1, "through": -1, "all": 7, "halves": 0.875, "null": None, "nowhere": None, "beyond": None,
    }  # fmt: skip


def test_lsn_is_the_sequence_number_with_the_headers_of_its_blocks() -> None:
    """Convert as log_translate_sn_to_lsn does: a block of 512 bytes has a payload of 496, from byte 12 on."""
    term = Term(0, Member((0,), 8, "unsigned"))
    planned = PlannedValue("redo_written_bytes", (term,), None, (0, 63), None, "", settled=False, unit="sn")

    assert _value(planned, {term: 0}) == 12
    assert _value(planned, {term: 495}) == 507
    assert _value(planned, {term: 496 * 16}) == 512 * 16 + 12
    assert _value(planned, {term: (1 << 63) + 496}) == 524  # SN_LOCKED


def test_lsn_is_the_base_and_the_offset_without_its_flags() -> None:
    """Compute as log_t::get_lsn of MariaDB 10.11.18 does: bit 33 is a flag, higher bits are a counter."""
    base, offset = (Term(0, Member((0,), 8, "unsigned")) for _ in range(2))
    planned = PlannedValue(
        "redo_written_bytes", (base,), None, None, None, "", settled=False, plus=(offset, (0, 33))
    )

    assert _value(planned, {base: 5_000_000_000, offset: (7 << 34) + (1 << 33) + 321}) == 5_000_000_321
    assert _value(planned, {base: 5_000_000_000, offset: None}) is None


def test_value_subtracts_and_divides() -> None:
    size, margin, page = (Term(0, Member((0,), 8, "unsigned")) for _ in range(3))
    planned = PlannedValue("a", (size,), None, None, None, "", settled=False, minus=(margin,), per=page)

    assert _value(planned, {size: 100, margin: 1, page: 16}) == 6
    assert _value(planned, {size: 100, margin: None, page: 16}) is None
    assert _value(planned, {size: 100, margin: 1, page: 0}) is None


def _value(planned: PlannedValue, found: dict[Term, int | None]) -> float | None:
    elements = {term: None if number is None else (number,) for term, number in found.items()}
    return value_of(planned, elements, {}, {})


class _Page(ctypes.Structure):
    _fields_ = (("space", ctypes.c_uint64), ("oldest", ctypes.c_uint64))


class _Slot(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_uint64), ("since", ctypes.c_int64))


@pytest.mark.parametrize(("ends", "least"), [((3, 1, 2), 1), ((7, None, 9), 7), ((None, None, None), 0)])
def test_least_value_behind_pointers_ignores_null(
    ends: tuple[int | None, ...], least: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Read the last page of each flush list; a list without dirty pages has none."""
    pages = [None if end is None else _Page(0, end) for end in ends]
    array = (ctypes.c_void_p * 3)(*[None if page is None else ctypes.addressof(page) for page in pages])
    term = Term(ctypes.addressof(array), Member((0,), 8, "pointer", 8, 3))
    value = PlannedValue("a", (term,), None, None, None, "", settled=False, least=Member((8,), 8, "unsigned"))

    assert _reader(value, monkeypatch, tmp_path).read() == {"a": least}


@pytest.mark.parametrize(("slots", "age"), [(((1, 90), (1, 95), (0, 10)), 10), (((0, 90),) * 3, 0)])
@pytest.mark.parametrize(("clock", "scale"), [("unix", None), ("monotonic", None), ("monotonic", 0.5)])
def test_age_is_that_of_the_oldest_element_in_use(
    slots: tuple[tuple[int, int], ...],
    age: int,
    clock: Clock,
    scale: float | None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    array = (_Slot * 3)(*[_Slot(*slot) for slot in slots])
    times, flags = (Term(ctypes.addressof(array), Member((at,), 8, "signed", 16, 3)) for at in (8, 0))
    value = PlannedValue("a", (times,), None, None, scale, "", settled=False, flags=flags, clock=clock)
    now = 100.0 * (scale or 1)
    monkeypatch.setattr("time.time", lambda: now if clock == "unix" else 5_000.0)
    monkeypatch.setattr("time.monotonic", lambda: now if clock == "monotonic" else 7.0)

    assert _reader(value, monkeypatch, tmp_path).read() == {"a": age * (scale or 1)}


@pytest.mark.parametrize(("slots", "total"), [(3, 6), (2, 3), (0, None), (-1, None), (1 << 40, None)])
def test_elements_are_counted_up_to_the_end_of_a_vector(slots: int, total: int | None) -> None:
    array = (_Slot * 3)(_Slot(1, 0), _Slot(2, 0), _Slot(3, 0))
    first = ctypes.addressof(array)
    vector = (ctypes.c_void_p * 2)(first, (first + slots * ctypes.sizeof(_Slot)) % (1 << 64))
    end = Term(ctypes.addressof(vector), Member((8,), 8, "pointer"))
    term = Term(ctypes.addressof(vector), Member((0, 0), 8, "unsigned", ctypes.sizeof(_Slot), 0), end=end)

    assert numbers.read(os.getpid(), [term]) == {term: total}


@pytest.mark.parametrize(("spare", "pages"), [(None, 4), (4096, 5)])
def test_one_is_subtracted_without_a_reserve(
    spare: int | None, pages: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    count, pointer = ctypes.c_uint64(5), ctypes.c_void_p(spare)
    term = Term(ctypes.addressof(count), Member((0,), 8, "unsigned"))
    reserve = Term(ctypes.addressof(pointer), Member((0,), 8, "pointer"))
    value = PlannedValue("a", (term,), None, None, None, "", settled=False, reserve=reserve)

    assert _reader(value, monkeypatch, tmp_path).read() == {"a": pages}


def _reader(value: PlannedValue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MemoryReader:
    """Return a reader of one value in this process."""
    reader = MemoryReader(TARGET, cache=tmp_path)
    monkeypatch.setattr(reader, "_planned", lambda: MemoryPlan((value,), ()))
    monkeypatch.setattr("innoscope.memory.reader.still_same", lambda target, proc: True)
    return reader


def test_elements_far_apart_are_read_one_by_one() -> None:
    distance, elements = 1 << 16, 3
    pool = (ctypes.c_uint64 * (2 * distance // 8 + 1))()
    for number in range(elements):
        pool[number * distance // 8] = 1 << number
    member = Member((0,), 8, "unsigned", distance, elements)
    beyond = Member((0,), 8, "unsigned", 1 << 46, 2)

    terms = [Term(ctypes.addressof(pool), one) for one in (member, beyond)]

    assert numbers.read(os.getpid(), terms) == {terms[0]: 7, terms[1]: None}
    assert [numbers.is_readable(one) for one in (member, beyond)] == [True, False]


def test_implausible_number_of_elements_is_refused() -> None:
    pools, count = (_Pool * 2)(), ctypes.c_uint64(1 << 40)
    length = Term(ctypes.addressof(count), Member((0,), 8, "unsigned"))
    term = Term(ctypes.addressof(pools), Member((0,), 4, "unsigned", 24, 0), length)

    assert numbers.read(os.getpid(), [term]) == {term: None}


def test_ended_process_is_an_error() -> None:
    with pytest.raises(NoSuchProcess):
        numbers.read((1 << 22) - 1, [Term(4096, Member((0,), 8, "unsigned"))])
