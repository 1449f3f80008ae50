"""What a hit costs on this host: functions of our own, called with and without a probe."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from innoscope import _native
from innoscope.common.cache import Cache, cache_key
from innoscope.common.errors import KernelUnable
from innoscope.probes.catalog import ENTER, LEAVE
from innoscope.target.native_errors import translating

if TYPE_CHECKING:
    from collections.abc import Sequence

    from innoscope._native import Function
    from innoscope.target.model import Target

#: Calls of which the median is taken.
_CALLS = 201
#: A busy server loses more than the time of a hit: branch predictors forget, the thread may lose its CPU on
#: the way back, others spin for what it holds. Measured in pairs with and without probes: 3 to 5 times as
#: much (docs/performance.md).
BUSY = 4.0


#: Seconds after which a host may have become another: a virtual machine moves while it runs.
_VALID_S: Final = 86_400
_CACHE: Final = Cache("hit-costs", 8)


class Programs(Protocol):
    """Programs that are loaded to count in one server."""

    target: Target

    @property
    def calibration_programs(self) -> tuple[int, int]:
        """Descriptors of the programs for an entry and for a return."""

    def count_in(self, pid: int) -> None:
        """Count in this process and no other."""


@dataclass(frozen=True, slots=True)
class HitCost:
    """Nanoseconds that a busy server loses by one hit, with our programs.

    An entry probe costs ``entry_ns``, or ``stepped_ns`` where the kernel cannot emulate the function's first
    instruction; a return probe costs ``return_ns`` beside the entry.
    """

    entry_ns: float
    stepped_ns: float
    return_ns: float

    def of(self, at: Sequence[str], places: Sequence[Function]) -> float:
        """Seconds for one call of a function probed there; of several places the dearest."""
        entry = self.stepped_ns if any(place.stepped for place in places) else self.entry_ns
        # A return probe is a breakpoint at the entry as well, shared with an entry probe if there is one.
        both = self.return_ns if LEAVE in at else 0.0
        return (entry if ENTER in at or LEAVE in at else 0.0) / 1e9 + both / 1e9


def known_cost(attachment: Programs) -> HitCost:
    """As measured on this host today, by whichever process was the first; raises what ``calibrate`` does."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    key = cache_key(boot, str(int(time.time()) // _VALID_S))
    if (known := _CACHE.read(key)) is not None:
        return HitCost(**json.loads(known))
    cost = calibrate(attachment)
    _CACHE.write(key, json.dumps(asdict(cost)).encode())
    return cost


def calibrate(attachment: Programs) -> HitCost:
    """Measure with the very programs that were loaded; takes some 50 ms of one CPU.

    Raises NoRights (without uprobe links: CAP_SYS_ADMIN), or KernelUnable where our own code cannot be
    probed.
    """
    enter, leave = attachment.calibration_programs
    probes: list[_native.Uprobe] = []
    attachment.count_in(os.getpid())
    try:
        with translating(os.getpid()):
            plain, plain_stepped = per_call(stepped=False), per_call(stepped=True)
            probes.append(probe_own(enter, _native.CALIBRATION_FUNCTION_STEPPED, on_return=False))
            stepped = per_call(stepped=True)
            probes.append(probe_own(enter, _native.CALIBRATION_FUNCTION, on_return=False))
            entry = per_call(stepped=False)
            probes.append(probe_own(leave, _native.CALIBRATION_FUNCTION, on_return=True))
            both = per_call(stepped=False)
    finally:
        _native.detach_all(probes)
        attachment.count_in(attachment.target.pid)
    return HitCost(
        entry_ns=BUSY * max(0.0, entry - plain),
        stepped_ns=BUSY * max(0.0, stepped - plain_stepped),
        return_ns=BUSY * max(0.0, both - entry),
    )


def per_call(*, stepped: bool) -> float:
    """Nanoseconds that one call of our own function takes now."""
    return float(_native.calibration_run(_CALLS, stepped=stepped))


def probe_own(program: int, function: str, *, on_return: bool) -> _native.Uprobe:
    """The program at a function of ours. Raises KernelUnable or NativeError."""
    file = _native.CodeFile(os.getpid(), "_native.")
    own = next((each for each in file.functions([function]) if each.symbol == function), None)
    if own is None:
        raise KernelUnable(f"{file.shown_path} has no {function}", remedy="make setup")
    return _native.Uprobe(program, file.path, own.offset, os.getpid(), on_return=on_return)
