"""Compiled programs are packed and unpacked; damaged files are rejected."""

from __future__ import annotations

import zlib

import pytest

from innoscope.probes.object_file import Compiled, MapShape

COMPILED = Compiled({"one": bytes(range(16)), "two": b""}, (MapShape("counters", 6, 4, 8, 97, 0),))


def test_packed_programs_and_maps_can_be_unpacked() -> None:
    assert Compiled.unpack(COMPILED.pack()) == COMPILED


@pytest.mark.parametrize("size", [0, 1, 32, 60])
def test_truncated_file_is_refused(size: int) -> None:
    with pytest.raises(ValueError):  # noqa: PT011, any message is accepted
        Compiled.unpack(COMPILED.pack()[:size])


@pytest.mark.parametrize(
    "record",
    [
        b'{"format": 2, "programs": {}, "maps": []}',
        b'{"format": 1, "programs": {}}',
        b'{"format": 1, "programs": {"one": 7}, "maps": []}',
        b'{"format": 1, "programs": {"one": "x"}, "maps": []}',
        b'{"format": 1, "programs": [], "maps": []}',
        b'{"format": 1, "programs": {}, "maps": [{"name": "counters"}]}',
        b"[]",
        b"no JSON",
        b" " * (64 << 20),
    ],
)
def test_other_formats_are_refused(record: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011, any message is accepted
        Compiled.unpack(zlib.compress(record))
