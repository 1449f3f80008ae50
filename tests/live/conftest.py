"""Provide live servers under known loads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from live.observe import Observatory

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def observatory() -> Iterator[Observatory]:
    """Yield one set of observations that all tests share. Only one server runs at a time."""
    observatory = Observatory()
    yield observatory
    observatory.close()
