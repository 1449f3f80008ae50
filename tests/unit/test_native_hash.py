"""The Rust core's BLAKE2s computes the same digests as hashlib's, so that stored ids stay valid."""

from __future__ import annotations

import hashlib

import pytest

from innoscope import _native


@pytest.mark.parametrize("size", [1, 4, 8, 16, 32])
@pytest.mark.parametrize("data", [b"", b"abc", bytes(64), bytes(range(256)) * 100])
def test_digest_is_the_same_as_that_of_hashlib(data: bytes, size: int) -> None:
    assert _native.blake2s(data, size=size) == hashlib.blake2s(data, digest_size=size).digest()


@pytest.mark.parametrize("size", [0, 33])
def test_size_that_blake2s_does_not_have_is_rejected(size: int) -> None:
    with pytest.raises(ValueError, match="between 1 and 32"):
        _native.blake2s(b"", size=size)
