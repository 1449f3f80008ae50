"""Parse profile.proto without a library, as strictly as Parca does (pkg/normalizer/validate.go)."""

from __future__ import annotations

import gzip
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_VARINT, _BYTES = 0, 2


@dataclass(frozen=True, slots=True)
class Sample:
    """A stack of function names, innermost first, with one value and labels."""

    functions: tuple[str, ...]
    value: int
    labels: dict[str, str]


@dataclass(frozen=True, slots=True)
class Profile:
    """A parsed profile. ``sample_type`` is (type, unit); times are in nanoseconds."""

    sample_type: tuple[str, str]
    samples: tuple[Sample, ...]
    time_nanos: int
    duration_nanos: int

    @property
    def total(self) -> int:
        return sum(sample.value for sample in self.samples)

    def by_label(self, name: str) -> Counter[str]:
        """Return the sum of the samples' values for each value of that label."""
        found: Counter[str] = Counter()
        for sample in self.samples:
            if name in sample.labels:
                found[sample.labels[name]] += sample.value
        return found


def parse(data: bytes) -> Profile:
    """Parse a profile. Raise AssertionError or ValueError if it is malformed."""
    top = _fields(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    strings = [item.decode() for item in top[6]]
    assert strings[0] == "", "the first string is not empty"
    (sample_type,) = [_fields(item) for item in top[1]]
    functions = _by_id(top[5])
    locations = _by_id(top[4])
    names = {}
    for number, location in locations.items():
        (line,) = location[4]
        (function,) = _fields(line)[1]
        names[number] = strings[functions[function][2][0]]
    return Profile(
        (strings[sample_type[1][0]], strings[sample_type[2][0]]),
        tuple(_sample(item, strings, names) for item in top[2]),
        (top[9] or [0])[0],
        (top[10] or [0])[0],
    )


def _sample(data: bytes, strings: list[str], names: dict[int, str]) -> Sample:
    found = _fields(data)
    (value,) = _packed(found[2])
    labels = {}
    for item in found[3]:
        label = _fields(item)
        assert label[1][0], "a label without a key"
        labels[strings[label[1][0]]] = strings[label[2][0]]
    return Sample(tuple(names[number] for number in _packed(found[1])), value, labels)


def _by_id(items: list[bytes]) -> dict[int, dict[int, list[Any]]]:
    found = {}
    for place, item in enumerate(items, 1):
        fields = _fields(item)
        assert fields[1] == [place], "ids are not sequential"
        found[place] = fields
    return found


def _packed(items: list[Any]) -> list[int]:
    found = []
    for item in items:
        if isinstance(item, bytes):
            place = 0
            while place < len(item):
                number, place = _varint(item, place)
                found.append(number)
        else:
            found.append(item)
    return found


def _fields(data: bytes) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = defaultdict(list)
    for number, value in _messages(data):
        found[number].append(value)
    return found


def _messages(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        kind = key & 7
        value: int | bytes
        if kind == _VARINT:
            value, place = _varint(data, place)
        elif kind == _BYTES:
            size, place = _varint(data, place)
            value, place = data[place : place + size], place + size
            assert len(value) == size, "it ends in the middle of a field"
        else:
            raise ValueError(f"wire type {kind} has no place in profile.proto")
        yield key >> 3, value


def _varint(data: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[place]
        number |= (byte & 0x7F) << shift
        place += 1
        if byte < 0x80:
            return number, place
        shift += 7
