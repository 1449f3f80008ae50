"""Several threads can use a type for the first time simultaneously. With msgspec alone, this would crash."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import defstruct

from innoscope.common.typed import Entry, convert

if TYPE_CHECKING:
    from collections.abc import Iterator

THREADS, TYPES, DEPTH = 4, 100, 12


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    """Make Python switch between threads as often as possible."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def _nested(depth: int) -> Any:
    """Return a new structure type, nested to that depth."""
    kind: Any = int
    for number in range(depth):
        inner = dict[str, tuple[kind, ...]] | None
        fields = [(name, inner, None) for name in "abcdef"]
        kind = defstruct(f"Level{number}", fields, bases=(Entry,), frozen=True, kw_only=True)
    return kind


@pytest.mark.usefixtures("frequent_switches")
def test_types_can_be_used_first_by_several_threads() -> None:
    for _ in range(TYPES):
        kind, start, found = _nested(DEPTH), threading.Barrier(THREADS), list[Any]()

        def use(kind: Any = kind, start: threading.Barrier = start, found: list[Any] = found) -> None:
            start.wait()
            found.append(convert({"a": {"x": [{}]}}, kind, "a document"))

        threads = [threading.Thread(target=use) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == THREADS
