"""A layout in the catalog is used only if the build confirms it. This process acts as the server."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from innoscope._native import Member, Symbol
from innoscope.common.data import catalog_path
from innoscope.common.errors import BadFile
from innoscope.common.schema import convert
from innoscope.memory import catalog, known_layouts
from innoscope.memory import layout as layouts
from innoscope.memory.known_layouts import Elements, KnownLayout, LayoutCheck, MemberGroup
from innoscope.memory.layout import MemoryLayout
from innoscope.memory.numbers import Term
from innoscope.memory.plan import PlannedValue
from innoscope.memory.tables import StatusVariable
from unit.snapshots import target

if TYPE_CHECKING:
    from collections.abc import Mapping

    from innoscope.memory.known_layouts import LayoutVerdict

KNOWN = KnownLayout(
    machine="x86_64",
    sizes={"pools": 8, "stats": 600, "instances": 8},
    numbers=("instances",),
    elements={"pools": Elements(stride=0x4C0, code="total")},
    members=(
        MemberGroup(code="total", of={"pools[*].free": (0, 0x318), "pools[*].used": (0, 0x3A8)}),
        MemberGroup(code="export", of={"stats.reads": (0x1A0,)}),
        MemberGroup(code="export", of={"stats.waits": (0x40,)}, kind="signed"),
    ),
)
SIZES = {"pools": 8, "stats": 600, "instances": 8}
TOTAL, EXPORT = (0x4C0, 0x318, 0x3A8), (0x1A0,)


def _code(numbers: tuple[int, ...]) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(b"\x48\x8b\x88".join(n.to_bytes(4, "little") for n in (1, *numbers)))


def _described(
    total: tuple[int, ...] = TOTAL, export: tuple[int, ...] = EXPORT, sizes: Mapping[str, int] = SIZES
) -> MemoryLayout:
    code = {"total": _code(total), "export": _code(export)}
    symbols = {name: Symbol(4096, size) for name, size in sizes.items()}
    symbols |= {name: Symbol(ctypes.addressof(one), len(one)) for name, one in code.items()}
    return known_layouts.describe(
        KNOWN, os.getpid(), MemoryLayout(symbols, "dynsym", {}, {}, described=False), dict
    )


def test_confirmed_layout_is_used() -> None:
    found = _described()

    assert (found.described, found.from_catalog, found.missing) == (True, True, {})
    assert found.members == {
        "pools[*].free": Member((0, 0x318), 8, "unsigned", 0x4C0, 0),
        "pools[*].used": Member((0, 0x3A8), 8, "unsigned", 0x4C0, 0),
        "stats.reads": Member((0x1A0,), 8, "unsigned"),
        "stats.waits": Member((0x40,), 8, "signed"),
        "instances": Member((0,), 8, "unsigned"),
    }


def test_an_offset_that_the_code_does_not_use_rejects_the_whole_variable() -> None:
    found = _described(total=(0x4C0, 0x320, 0x3A8))

    assert set(found.members) == {"stats.reads", "stats.waits", "instances"}
    assert found.missing.keys() == {"pools[*].free", "pools[*].used"}
    assert "total does not use 0x318" in found.missing["pools[*].used"]


@pytest.mark.parametrize(("code", "confirmed"), [("90 48 ff 4f 78 c3", True), ("48 ff 4f 70 c3", False)])
def test_instructions_confirm_small_offsets(code: str, confirmed: bool) -> None:
    known = KnownLayout(
        machine="x86_64",
        sizes={"array": 8},
        members=(
            MemberGroup(code="release", instructions=("48 ff 4f 78 c3",), of={"array.used": (0, 0x78)}),
        ),
    )
    release = ctypes.create_string_buffer(bytes.fromhex(code))
    symbols = {"array": Symbol(4096, 8), "release": Symbol(ctypes.addressof(release), len(release))}

    found = known_layouts.describe(
        known, os.getpid(), MemoryLayout(symbols, "dynsym", {}, {}, described=False), dict
    )

    assert ("array.used" in found.members) == confirmed
    assert ("release does not contain the instructions" in str(found.missing.get("array.used"))) != confirmed


def test_elements_of_a_vector_inside_a_structure_are_located() -> None:
    known = KnownLayout(
        machine="x86_64",
        sizes={"array": 8},
        elements={"array.slots.first": Elements(stride=0x108, code="reserve")},
        members=(
            MemberGroup(code="reserve", of={"array.used": (0, 0x80)}),
            MemberGroup(code="reserve", of={"array.slots.last": (0, 0x50)}, kind="pointer"),
            MemberGroup(code="reserve", of={"array.slots.first[*].reserved": (0, 0x48, 2)}, size=1),
        ),
    )
    reserve = _code((0x108, 0x80))
    symbols = {"array": Symbol(4096, 8), "reserve": Symbol(ctypes.addressof(reserve), len(reserve))}
    layout = MemoryLayout(symbols, "dynsym", {}, {}, described=False)

    assert known_layouts.describe(known, os.getpid(), layout, dict).members == {
        "array.used": Member((0, 0x80), 8, "unsigned"),
        "array.slots.last": Member((0, 0x50), 8, "pointer"),
        "array.slots.first[*].reserved": Member((0, 0x48, 2), 1, "unsigned", 0x108, 0),
    }


def test_small_offsets_without_instructions_are_refused() -> None:
    with pytest.raises(ValueError, match="no offset in array can be confirmed"):
        KnownLayout(
            machine="x86_64",
            sizes={"array": 8},
            members=(MemberGroup(code="release", of={"array.used": (0, 0x78)}),),
        )


def test_a_different_stride_is_refused() -> None:
    assert "does not use 0x4c0" in _described(total=(0x500, 0x318, 0x3A8)).missing["pools[*].free"]


def test_a_different_size_of_a_variable_is_refused() -> None:
    found = _described(sizes=SIZES | {"stats": 608, "instances": 4})

    assert set(found.members) == {"pools[*].free", "pools[*].used"}
    assert found.missing["stats.waits"] == "stats has 608 bytes in this build, not 600"


def test_function_without_a_symbol_confirms_nothing() -> None:
    symbols = {name: Symbol(4096, size) for name, size in SIZES.items()}

    found = known_layouts.describe(
        KNOWN, os.getpid(), MemoryLayout(symbols, "dynsym", {}, {}, described=False), dict
    )

    assert set(found.members) == {"instances"}
    assert "no symbol export" in found.missing["stats.reads"]


@pytest.mark.parametrize(
    ("export", "reason"),
    [
        (Symbol(4096, 65_537), "export has 65,537 bytes, and only 1 to 65,536 are read"),
        (Symbol(4096, 0), "export has 0 bytes, and only 1 to 65,536 are read"),
        (Symbol(16, 32), "cannot read the code of export"),
    ],
)
def test_function_that_cannot_be_read_is_not_reported_as_missing(export: Symbol, reason: str) -> None:
    symbols = {name: Symbol(4096, size) for name, size in SIZES.items()} | {"export": export}

    found = known_layouts.describe(
        KNOWN, os.getpid(), MemoryLayout(symbols, "dynsym", {}, {}, described=False), dict
    )

    assert found.missing["stats.reads"] == f"the layout of stats cannot be confirmed: {reason}"


ANCHORED = KnownLayout(
    machine="x86_64",
    anchors={"pool": {"Innodb_pages_read": 0x100, "Innodb_pages_written": 0x108}},
    witnesses={"data": "pool.bytes"},
    members=(MemberGroup(of={"pool.used": (0x228,), "pool.bytes": (0x148,)}),),
)


@pytest.mark.parametrize(("written", "base"), [(0x7108, 0x7000), (0x7110, None)])
def test_anchors_have_to_agree_on_the_address(written: int, base: int | None) -> None:
    table = {
        name: StatusVariable(name, address, "uint64", live=True)
        for name, address in {"Innodb_pages_read": 0x7100, "Innodb_pages_written": written}.items()
    }
    empty = MemoryLayout({}, "dynsym", {}, {}, described=False)

    found = known_layouts.describe(ANCHORED, os.getpid(), empty, lambda: table)

    assert found.symbols == ({"pool": Symbol(base, 0)} if base else {})
    assert found.witnesses == (("pool.bytes",) if base else ())


@pytest.mark.parametrize(
    ("version", "machine", "found"),
    [
        ((8, 0, 31), "x86_64", True),
        ((8, 0, 31), "aarch64", False),
        ((8, 0, 30), "x86_64", False),
        ((8, 0, 32), "x86_64", False),
        ((9, 99, 0), "x86_64", False),
        ((), "x86_64", False),
    ],
)
def test_layouts_apply_to_exact_versions_only(
    version: tuple[int, ...], machine: str, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)

    known = known_layouts.of(target(flavour="mysql", version=version))

    assert (known is not None) == found


def test_values_are_withheld_until_a_check_holds() -> None:
    term = Term(0, Member((0,), 8, "unsigned"))
    readings = [
        PlannedValue(name, (term,), None, None, None, "", settled=False, assumed=frozenset({root}))
        for name, root in (("used", "pool"), ("free", "pool"), ("waits", "stats"))
    ]
    checks = [
        LayoutCheck("used <= free", ("used", "free"), _at_most),
        LayoutCheck("used <= gone", ("used", "gone"), _at_most),
    ]

    withheld, pending = known_layouts.run_checks(checks, readings, {"used": 2, "free": 1, "waits": 3})
    assert withheld == dict.fromkeys(
        ("used", "free"), "no values have confirmed the layout yet: used <= free"
    )
    assert [check.text for check in pending] == ["used <= free"]

    withheld, pending = known_layouts.run_checks(pending, readings, {"waits": 3})
    assert withheld.keys() == {"used", "free"}

    assert known_layouts.run_checks(pending, readings, {"used": 1, "free": 1}) == ({}, ())


def _at_most(values: Mapping[str, float]) -> LayoutVerdict:
    lower, upper = values["used"], values["free"]
    return "holds" if lower <= upper else "fails"


SETTINGS = {"innodb_buffer_pool_size": 16 << 20, "innodb_page_size": 16384}
VALUES = {
    "buffer_pool_pages": 1008, "buffer_pool_data_pages": 700, "buffer_pool_free_pages": 300,
    "buffer_pool_dirty_pages": 20, "redo_checkpoint_bytes": 100, "redo_flushed_bytes": 0,
    "redo_written_bytes": 200,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "failed"),
    [
        ({}, 0),
        ({"buffer_pool_free_pages": 309}, 1),
        ({"buffer_pool_dirty_pages": 701}, 1),
        ({"redo_checkpoint_bytes": 201}, 1),
        ({"redo_written_bytes": 0, "redo_checkpoint_bytes": 0}, 2),
        ({"buffer_pool_pages": 1025}, 1),
        ({"buffer_pool_pages": 900, "buffer_pool_free_pages": 0}, 1),
    ],
)
def test_implausible_values_fail_a_check(changes: dict[str, float], failed: int) -> None:
    values = VALUES | changes
    checks = known_layouts.checks(KNOWN, lambda: SETTINGS)

    assert sum(check.judge(values) == "fails" for check in checks) == failed


@pytest.mark.parametrize(
    ("pages", "size", "verdict"),
    [
        (0, 0, "undecided"),
        (100, 100 * 16384, "holds"),
        (100, 92 * 16384, "holds"),
        (100, 0, "fails"),
        (0, 16384, "fails"),
        (64, 343 * 16384, "fails"),
    ],
)
def test_witness_confirms_the_length_of_a_list(pages: int, size: int, verdict: str) -> None:
    check = known_layouts.checks(ANCHORED, lambda: SETTINGS)[-1]

    assert check.judge({"data": pages, "pool.bytes": size}) == verdict


def test_installed_layouts_belong_to_paths_of_the_catalog() -> None:
    wanted = catalog.load().paths
    for known in known_layouts.load().layouts:
        assert known.ranges
        paths = known.found(()).keys() - known.witnesses.values()
        assert paths <= set(wanted), known.ranges
        assert {layouts.root(path) for path in paths} <= known.sizes.keys() | known.anchors.keys()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"machine": "aarch64"}, "aarch64"),
        ({"sizes": {}}, "size of"),
        ({"members": [{"of": {"log_sys.lsn": [0, 64]}}]}, "needs code"),
        ({"members": [{"code": "f", "of": {"log_sys.lsn": [0, 64]}}]}, "can be confirmed"),
        ({"members": [{"code": "f", "of": {"log_sys[*].lsn": [0, 640]}}]}, "elements of"),
        ({"numbers": ["unknown"]}, "size of unknown"),
    ],
)
def test_layouts_that_cannot_be_confirmed_are_refused(change: dict[str, Any], message: str) -> None:
    data = yaml.safe_load(catalog_path("layouts.yaml").read_bytes())
    data["layouts"] = [data["layouts"][0] | change]

    with pytest.raises(BadFile, match=message):
        convert(data, known_layouts.LayoutsFile, Path("layouts.yaml"), lambda _: None)
