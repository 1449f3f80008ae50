"""Test the bit arithmetic that our BPF programs share, compiled for this machine."""

from __future__ import annotations

import ctypes
import subprocess
from typing import TYPE_CHECKING

import pytest

from innoscope.common.data import folder

if TYPE_CHECKING:
    from collections.abc import Callable

_SOURCE = """
typedef unsigned int __u32;
typedef unsigned long long __u64;
#include "bits.h"
__u32 of(__u64 value) { return highest_bit(value); }
"""


@pytest.fixture(scope="module")
def highest_bit(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], int]:
    place = tmp_path_factory.mktemp("bits")
    (place / "bits.c").write_text(_SOURCE)
    library = place / "bits.so"
    command = ["clang", "-O2", "-shared", "-fPIC", f"-I{folder('include')}", str(place / "bits.c")]
    subprocess.run([*command, "-o", str(library)], check=True)
    function = ctypes.CDLL(str(library)).of
    function.argtypes, function.restype = [ctypes.c_uint64], ctypes.c_uint32
    return lambda value: int(function(value))


@pytest.mark.parametrize("bit", range(64))
def test_highest_bit(highest_bit: Callable[[int], int], bit: int) -> None:
    first, last = 1 << bit, (2 << bit) - 1
    assert (highest_bit(first), highest_bit(last), highest_bit(0)) == (bit, bit, 0)
