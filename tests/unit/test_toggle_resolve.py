"""All available sources must agree on a setting's address, size and type.

The sources are symbols, debug information, the server's table of system variables and the catalog.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest

from innoscope.memory.regions import Image, Region
from innoscope.memory.tables import SystemVariable
from innoscope.toggles import locate_setting, number_bytes
from innoscope.toggles.backends import gdb
from innoscope.toggles.backends.gdb import Described
from innoscope.toggles.model import ChangeRefused, NotOnThisServer, ToggledVariable
from unit.snapshots import target

if TYPE_CHECKING:
    from innoscope.toggles.model import Raw

BIAS = 0x5500_0000_0000
FLAG = ToggledVariable("flag", "unsigned", 8, (0, 1))
GDB_OUTPUT = """
==max_connections
$1 = 8
$2 = 0xf4acc8
type = unsigned long

==gone

==limit
$3 = 8
$4 = 0x26e52c0
type = volatile double
"""


def symbols(*places: tuple[int, int], name: str = "flag") -> locate_setting.Symbols:
    return locate_setting.Symbols({name: frozenset(places)}, "symtab", BIAS, None)


def described(**changes: object) -> Described:
    return replace(Described(0x1000, 8, "unsigned", "unsigned long"), **changes)  # type: ignore[arg-type]


def test_the_output_of_gdb_is_parsed_without_unknown_names() -> None:
    assert gdb.parse(GDB_OUTPUT) == {
        "max_connections": Described(0xF4ACC8, 8, "unsigned", "unsigned long"),
        "limit": Described(0x26E52C0, 8, "float", "volatile double"),
    }
    assert gdb.parse("") == {}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("unsigned long", "unsigned"), ("long", "signed"), ("volatile int", "signed"), ("bool", "unsigned"),
        ("char", "char"), ("const unsigned char", "unsigned"), ("double", "float"), ("long double", "other"),
        ("enum srv_mode {A, B}", "unsigned"), ("enum srv_mode {A, B} *", "other"), ("struct x {", "other"),
        ("char *", "other"), ("unsigned long [4]", "other"), ("unsigned int", "unsigned"),
    ],
)  # fmt: skip
def test_c_types_have_the_right_kind(text: str, kind: str) -> None:
    assert gdb.kind_of(text) == kind


def test_agreeing_sources_give_an_address() -> None:
    found = locate_setting.of_symbol(FLAG, symbols((BIAS + 0x1000, 8)), described(), "gdb")
    assert found == locate_setting.SettingLocation(BIAS + 0x1000, 8, "unsigned", "gdb")

    found = locate_setting.of_symbol(FLAG, symbols((BIAS + 0x1000, 8)), None, "")
    assert found == locate_setting.SettingLocation(BIAS + 0x1000, 8, "unsigned", "symbol (symtab)")

    small = ToggledVariable("flag", "unsigned", 1, (0, 1))
    own = described(size=1, kind="char", text="char")
    assert locate_setting.of_symbol(small, symbols((BIAS + 0x1000, 1)), own, "").type == "unsigned"


@pytest.mark.parametrize(
    ("setting", "places", "debug_info", "words"),
    [
        (FLAG, [(BIAS + 0x1000, 8), (BIAS + 0x2000, 8)], None, "2 times"),
        (FLAG, [(BIAS + 0x1000, 1)], None, "1 bytes in this build, but 8"),
        (FLAG, [(BIAS + 0x1000, 8)], described(address=0x2000), "by its debug information"),
        (FLAG, [(BIAS + 0x1000, 8)], described(size=1), "by its debug information"),
        (FLAG, [(BIAS + 0x1000, 8)], described(kind="float", text="double"), "is of type double"),
        (FLAG, [(BIAS + 0x1000, 8)], described(kind="signed", text="long"), "is of type long"),
        (FLAG, [(BIAS + 0x1000, 8)], described(kind="other", text="struct x"), "is of type struct x"),
        (replace(FLAG, kind=None), [(BIAS + 0x1000, 8)], None, "does not define"),
        (replace(FLAG, size=None), [(BIAS + 0x1000, 8)], None, "does not define"),
        (replace(FLAG, size=1), [(BIAS + 0x1000, 8)], described(), "8 bytes in this build, but 1"),
    ],
)
def test_a_contradiction_is_refused_with_its_source(
    setting: ToggledVariable, places: list[tuple[int, int]], debug_info: Described | None, words: str
) -> None:
    with pytest.raises(ChangeRefused, match=words) as refused:
        locate_setting.of_symbol(setting, symbols(*places), debug_info, "gdb")
    assert refused.value.remedy


def test_the_servers_table_gives_an_address_of_matching_type() -> None:
    table = {
        "innodb_x": SystemVariable("innodb_x", 0x1000, "uint64"),
        "innodb_y": SystemVariable("innodb_y", 8, "float64"),
    }
    setting = ToggledVariable("srv_x", "unsigned", 8, (0, 1), "innodb_x")

    assert locate_setting.of_table(setting, table, target()).address == 0x1000
    with pytest.raises(NotOnThisServer, match="no symbol srv_z"):
        locate_setting.of_table(ToggledVariable("srv_z", "unsigned", 8), table, target())
    with pytest.raises(ChangeRefused, match="float64"):
        locate_setting.of_table(replace(setting, variable="innodb_y"), table, target())
    with pytest.raises(ChangeRefused, match="8 bytes"):
        locate_setting.of_table(replace(setting, size=4), table, target())


def test_a_contradiction_with_the_server_s_table_is_refused() -> None:
    place = locate_setting.SettingLocation(0x1000, 8, "unsigned", "")
    other = {"innodb_x": SystemVariable("innodb_x", 0x1000, "float64")}
    with pytest.raises(ChangeRefused, match="innodb_x there, which is float64"):
        locate_setting.must_not_contradict(FLAG, place, other)
    elsewhere = {"innodb_x": SystemVariable("innodb_x", 0x2000, "uint64")}
    with pytest.raises(ChangeRefused, match="innodb_x at 0x2000"):
        locate_setting.must_not_contradict(replace(FLAG, variable="innodb_x"), place, elsewhere)
    locate_setting.must_not_contradict(FLAG, place, elsewhere)


class Memory:
    """A program with code at 0x1000 and data from 0x2000 to 0x3000."""

    def is_data(self, address: int) -> bool:
        return Region(0x2000, 0x3000, True, False).start <= address < 0x3000


@pytest.mark.parametrize(
    ("address", "size", "kind", "words"),
    [
        (0x1000, 8, "unsigned", "writable"), (0x3000, 1, "unsigned", "writable"),
        (0x2004, 8, "unsigned", "aligned"), (0x2000, 16, "unsigned", "not a valid size of type unsigned"),
        (0x2000, 0, "unsigned", "not a valid size of type unsigned"),
        (0x2000, 1, "float", "not a valid size of type float"),
    ],
)  # fmt: skip
def test_unwritable_unaligned_and_odd_sized_places_are_refused(
    address: int, size: int, kind: str, words: str
) -> None:
    image = cast("Image", Memory())
    locate_setting.check_place("flag", locate_setting.SettingLocation(0x2FF8, 8, "unsigned", ""), image)
    with pytest.raises(ChangeRefused, match=words):
        locate_setting.check_place("flag", locate_setting.SettingLocation(address, size, kind, ""), image)


def test_numbers_are_encoded_in_their_exact_width() -> None:
    assert number_bytes.encode("x", 1, "unsigned", 8) == b"\1" + bytes(7)
    assert number_bytes.encode("x", True, "unsigned", 1) == b"\1"
    assert number_bytes.encode("x", 200.0, "unsigned", 2) == b"\xc8\0"
    assert number_bytes.encode("x", -1, "signed", 4) == b"\xff" * 4
    assert number_bytes.decode(number_bytes.encode("x", 75, "float", 8), "float") == 75.0
    assert number_bytes.decode(b"\xff" * 8, "unsigned") == (1 << 64) - 1


@pytest.mark.parametrize(
    ("raw", "kind", "size"),
    [
        (256, "unsigned", 1), (-1, "unsigned", 8), (1 << 64, "unsigned", 8), (128, "signed", 1),
        (0.5, "unsigned", 8), ("on", "unsigned", 1), (None, "unsigned", 1), (1, "float", 1),
        (float("nan"), "float", 8), (float("inf"), "unsigned", 8), (1e300, "float", 4), (1, "other", 8),
    ],
)  # fmt: skip
def test_a_number_that_does_not_fit_is_refused(raw: Raw | None, kind: str, size: int) -> None:
    with pytest.raises(ChangeRefused):
        number_bytes.encode("x", raw, kind, size)
