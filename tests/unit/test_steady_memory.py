"""The sensor's histories stop growing when they cover their time, although each snapshot has new stacks."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING, Final

import pytest

from innoscope.sampling.model import Frame, Thread, Trust
from innoscope.sampling.profile_history import ClassifiedStack, ProfileHistory
from innoscope.sampling.sessions.buffer import SampleBuffer

if TYPE_CHECKING:
    from collections.abc import Callable

START: Final = 1_700_000_000
CALLERS: Final = tuple(Frame(f"caller_{number}", "mysqld", number) for number in range(20))


def stack(second: int) -> ClassifiedStack:
    """Return a stack whose innermost function no other snapshot has."""
    return ClassifiedStack.of("on_cpu", Trust.EXACT, (Frame(f"leaf_{second}", "mysqld", second), *CALLERS))


def profiles() -> Callable[[int], None]:
    history = ProfileHistory(span_s=60.0)
    return lambda second: history.add(START + second, {stack(second): 1})


def samples() -> Callable[[int], None]:
    buffer = SampleBuffer(span_s=60.0)

    def add(second: int) -> None:
        one = stack(second)
        thread = Thread(1, 1, "connection", "R", Trust.EXACT, "on_cpu", one.frames)
        buffer.add(START + second, 1.0, [("client", one, thread)])

    return add


@pytest.mark.parametrize("history", [profiles, samples])
def test_memory_is_the_same_after_ten_times_the_time(history: Callable[[], Callable[[int], None]]) -> None:
    add = history()
    tracemalloc.start()
    try:
        sizes = []
        for seconds in (range(1_200), range(1_200, 12_000)):
            largest = 0
            for second in seconds:
                add(second)
                largest = max(largest, tracemalloc.get_traced_memory()[0])
            sizes.append(largest)
    finally:
        tracemalloc.stop()
    assert sizes[1] <= 1.05 * sizes[0]
