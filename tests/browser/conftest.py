"""Start one browser per test module."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from browser import scene

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with scene.chromium() as one:
        yield one
