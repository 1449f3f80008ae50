"""Measure the cost of a hit on this host, by calling our own functions with and without a probe."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from innoscope import _native
from innoscope.common.cache import Cache, cache_key
from innoscope.common.errors import BadFile, KernelUnable
from innoscope.common.typed import decode_json, encode_json
from innoscope.probes.catalog import ENTER, LEAVE
from innoscope.target.native_errors import translating

if TYPE_CHECKING:
    from collections.abc import Sequence

    from innoscope._native import Function
    from innoscope.target.model import Target

#: Number of calls that are timed; the median of their durations is used.
_CALLS = 201
#: CPU time that a busy server loses per hit, as a multiple of the hit's duration. The loss exceeds the
#: duration, because the hit disturbs branch predictors, the thread may lose its CPU, and other threads may
#: spin on its locks. docs/performance.md has the measurements.
BUSY_FACTOR = 4.0
#: The cost is measured again in each period of this many seconds (a UTC day), because a virtual machine may
#: migrate to another host.
_VALID_S: Final = 86_400
_CACHE: Final = Cache("hit-costs", 8)


class Programs(Protocol):
    """Loaded programs that count the hits in one process."""

    target: Target

    @property
    def calibration_programs(self) -> tuple[int, int]:
        """Return the descriptors of the entry program and the return program."""

    def count_in(self, pid: int) -> None:
        """Restrict counting to the process ``pid``."""


@dataclass(frozen=True, slots=True)
class HitCost:
    """The CPU time in nanoseconds that a busy server loses per hit.

    An entry probe costs ``entry_ns``, or ``stepped_ns`` if the kernel cannot emulate the function's first
    instruction. A return probe costs ``return_ns`` in addition to the entry.
    """

    entry_ns: float
    stepped_ns: float
    return_ns: float

    def of(self, at: Sequence[str], places: Sequence[Function]) -> float:
        """Return the seconds that probes at ``at`` add to each call of the most expensive of ``places``."""
        entry = self.stepped_ns if any(place.stepped for place in places) else self.entry_ns
        # A return probe also needs a breakpoint at the entry, which an entry probe shares.
        on_return = self.return_ns if LEAVE in at else 0.0
        return (entry if ENTER in at or LEAVE in at else 0.0) / 1e9 + on_return / 1e9


def known_cost(attachment: Programs) -> HitCost:
    """Return the cost cached for this boot and for today (UTC); if there is none, measure it."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    key = cache_key(boot, str(int(time.time()) // _VALID_S))
    if (cached := _CACHE.read(key)) is not None:
        with suppress(BadFile):  # written by another build of this version
            return decode_json(cached, HitCost, "the cached cost")
    cost = calibrate(attachment)
    _CACHE.write(key, encode_json(cost))
    return cost


def calibrate(attachment: Programs) -> HitCost:
    """Measure the cost with the loaded programs. This takes about 50 ms of CPU time.

    Hits in the server are not counted meanwhile.

    Raise NoRights (without uprobe links, CAP_SYS_ADMIN is needed), or KernelUnable if our own code cannot be
    probed.
    """
    enter, leave = attachment.calibration_programs
    probes: list[_native.Uprobe] = []
    attachment.count_in(os.getpid())
    try:
        with translating(os.getpid()):
            plain, plain_stepped = ns_per_call(stepped=False), ns_per_call(stepped=True)
            probes.append(probe_own_function(enter, _native.CALIBRATION_FUNCTION_STEPPED, on_return=False))
            stepped = ns_per_call(stepped=True)
            probes.append(probe_own_function(enter, _native.CALIBRATION_FUNCTION, on_return=False))
            entry = ns_per_call(stepped=False)
            probes.append(probe_own_function(leave, _native.CALIBRATION_FUNCTION, on_return=True))
            both = ns_per_call(stepped=False)
    finally:
        _native.detach_all(probes)
        attachment.count_in(attachment.target.pid)
    return HitCost(
        entry_ns=BUSY_FACTOR * max(0.0, entry - plain),
        stepped_ns=BUSY_FACTOR * max(0.0, stepped - plain_stepped),
        return_ns=BUSY_FACTOR * max(0.0, both - entry),
    )


def ns_per_call(*, stepped: bool) -> float:
    """Measure the current duration of a call to our own function, in nanoseconds."""
    return float(_native.calibration_run(_CALLS, stepped=stepped))


def probe_own_function(program: int, function: str, *, on_return: bool) -> _native.Uprobe:
    """Attach the program to one of our own functions.

    Raise KernelUnable if our library has no such function, or NativeError if the kernel does not attach the
    probe.
    """
    file = _native.CodeFile(os.getpid(), "_native.")
    own = next((found for found in file.functions([function]) if found.symbol == function), None)
    if own is None:
        raise KernelUnable(
            f"cannot calibrate probes: {file.shown_path} has no {function}", remedy="make setup"
        )
    return _native.Uprobe(program, file.path, own.offset, os.getpid(), on_return=on_return)
