"""Make calls fail with each kind of error that a call can raise in the sensor or the agent."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Final

from innoscope import _native
from scale import count

if TYPE_CHECKING:
    from collections.abc import Callable

_HASH: Final = 1


def panic() -> None:
    """Cause a real panic in the Rust core: read a map with values that are larger than the address space."""
    descriptor = _native.create_map("panic", _HASH, 4, 8, 1, 0)
    try:
        _native.BpfMap(descriptor, words=1 << 61).entries()
    finally:
        os.close(descriptor)


def _raise(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


ERRORS: Final[dict[str, Callable[[], None]]] = {
    "OSError": _raise(OSError(12, "Cannot allocate memory")),
    "NativeError": _raise(_native.NativeError("bpf", "made for this test")),
    "MemoryError": _raise(MemoryError()),
    "PanicException": panic,
}


class Fault:
    """A wrapper around a function. Calls to the function fail while the fault is armed."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.fail: Callable[[], None] | None = None
        self.failed_at: float | None = None
        self.once = False

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if self.fail is not None:
            if self.failed_at is None:
                self.failed_at = time.monotonic()
            elif self.once:
                return self.real(*arguments, **named)
            self.fail()
        return self.real(*arguments, **named)

    def arm(self, fail: Callable[[], None]) -> None:
        self.fail, self.failed_at = fail, None

    def disarm(self) -> None:
        self.fail = None


def rotated(number: int) -> list[str]:
    """Return the errors to raise from call number ``number``."""
    names = list(ERRORS)
    first = number % len(names)
    return [*names[first:], *names[:first]][: count(quick=1, full=len(names))]
