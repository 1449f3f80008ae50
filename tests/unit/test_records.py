"""Records against the data classes that they stand for."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import pytest

from innoscope.records import record, structure


@record
class Point:
    """Two required fields, one with a default, one made anew, one hidden, one not compared."""

    x: int
    y: int
    name: str = "p"
    seen: dict[str, int] = field(default_factory=dict, compare=False)
    hidden: str = field(default="", repr=False)
    note: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Like:
    """The same as Python makes it."""

    x: int
    y: int
    name: str = "p"
    seen: dict[str, int] = field(default_factory=dict, compare=False)
    hidden: str = field(default="", repr=False)
    note: str = field(default="", compare=False)


@record
class Heir(Point):
    """A record with one more field."""

    more: int = 7


@record
class Empty:
    """No fields."""


GIVEN: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1, 2), {}),
    ((1,), {"y": 2, "name": "q"}),
    ((), {"y": 2, "x": 1, "seen": {"a": 1}, "hidden": "s", "note": "n"}),
    ((1, 2, "q", {}, "s", "n"), {}),
]


@pytest.mark.parametrize(("places", "names"), GIVEN)
def test_it_holds_and_tells_what_a_data_class_does(places: tuple[Any, ...], names: dict[str, Any]) -> None:
    ours, theirs = Point(*places, **names), Like(*places, **names)
    assert asdict(ours) == asdict(theirs)
    assert repr(ours).removeprefix("Point") == repr(theirs).removeprefix("Like")
    assert hash(ours) == hash(theirs)


@pytest.mark.parametrize(
    ("places", "names", "words"),
    [
        ((1,), {}, r"Point\.__init__\(\) missing 1 required positional argument: 'y'"),
        ((1, 2), {"z": 3}, r"Point\.__init__\(\) got an unexpected keyword argument 'z'"),
        ((1, 2, "p", {}, "", "", 7), {}, r"Point\.__init__\(\) takes from 3 to 7 positional arguments"),
    ],
)
def test_what_does_not_fit_is_told_like_a_data_class_does(
    places: tuple[Any, ...], names: dict[str, Any], words: str
) -> None:
    with pytest.raises(TypeError, match=words):
        Point(*places, **names)
    with pytest.raises(TypeError, match=words.replace("Point", "Like")):
        Like(*places, **names)


def test_equal_is_who_has_the_same_values_and_class() -> None:
    assert Point(1, 2, note="a") == Point(1, 2, note="b")
    assert Point(1, 2, hidden="a") != Point(1, 2, hidden="b")
    assert Point(1, 2) != Like(1, 2)  # type: ignore[comparison-overlap]
    assert Point(1, 2) != Heir(1, 2)
    assert len({Point(1, 2), Point(1, 2), Point(1, 3)}) == 2


def test_a_default_that_is_made_is_made_each_time() -> None:
    one, other = Point(1, 2), Point(1, 2)
    one.seen["a"] = 1
    assert other.seen == {}


def test_an_heir_has_its_own_fields_too() -> None:
    heir = Heir(1, 2)
    assert (heir.x, heir.more) == (1, 7)
    assert [one.name for one in fields(heir)][-1] == "more"
    assert replace(heir, more=8) == Heir(1, 2, more=8)
    assert Point(1, 2).name == "p", "the heir's start left its parent's alone"


def test_it_has_no_room_for_other_attributes() -> None:
    with pytest.raises(AttributeError):
        Point(1, 2).other = 3  # type: ignore[attr-defined]


def test_one_without_fields() -> None:
    assert Empty() == Empty()
    assert repr(Empty()) == "Empty()"
    assert hash(Empty()) == hash(Empty())


@structure
class Tally:
    """Fields that change."""

    count: int = 0
    names: list[str] = field(default_factory=list)


def test_a_structure_may_be_changed_and_has_no_hash() -> None:
    one, other = Tally(), Tally()
    assert one == other
    one.count += 1
    one.names.append("a")
    assert one != other
    assert (repr(one), asdict(one)) == ("Tally(count=1, names=['a'])", {"count": 1, "names": ["a"]})
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)
