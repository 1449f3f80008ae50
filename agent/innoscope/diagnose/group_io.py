"""Read a cgroup's I/O limits and the I/O that counts toward them, for cgroup v1 and v2.

Values are keyed by ``(device, kind)``. The device is ``major:minor``. The kinds are the ones in io.max:
``rbps`` and ``wbps`` (bytes), ``riops`` and ``wiops`` (requests).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PerDevice = dict[tuple[str, str], float]

#: cgroup v1 files with one limit per line (``8:0 1048576``), and the kind of the limit.
_LIMITS_V1: Final = {
    "blkio.throttle.read_bps_device": "rbps",
    "blkio.throttle.write_bps_device": "wbps",
    "blkio.throttle.read_iops_device": "riops",
    "blkio.throttle.write_iops_device": "wiops",
}
#: cgroup v1 files with totals (``8:0 Read 4096``), and the kinds of their lines.
_TOTALS_V1: Final = {
    "blkio.throttle.io_service_bytes_recursive": {"Read": "rbps", "Write": "wbps"},
    "blkio.throttle.io_serviced_recursive": {"Read": "riops", "Write": "wiops"},
}
#: Names in io.max and io.stat of cgroup v2, and their kinds.
_MAX_V2: Final = {kind: kind for kind in _LIMITS_V1.values()}
_STAT_V2: Final = {"rbytes": "rbps", "wbytes": "wbps", "rios": "riops", "wios": "wiops"}


def limits(folder: Path) -> PerDevice:
    """Return the cgroup's limits, in bytes or requests per second."""
    found = _named(folder / "io.max", _MAX_V2)
    for name, kind in _LIMITS_V1.items():
        for device, *numbers in _lines(folder / name):
            if len(numbers) == 1 and numbers[0].isdigit():
                found[device, kind] = float(numbers[0])
    return found


def totals(folder: Path) -> PerDevice:
    """Return the bytes and requests since the cgroup was created, including those of its child cgroups."""
    found = _named(folder / "io.stat", _STAT_V2)
    for name, kinds in _TOTALS_V1.items():
        for device, *words in _lines(folder / name):
            if len(words) == 2 and words[0] in kinds and words[1].isdigit():
                found[device, kinds[words[0]]] = float(words[1])
    return found


def used_ratio(limit: PerDevice, before: PerDevice, after: PerDevice, seconds: float) -> float | None:
    """Return the highest ratio of an I/O rate to its limit; None if there are no limits."""
    return max(
        (
            (after.get(key, 0.0) - before.get(key, 0.0)) / seconds / most
            for key, most in limit.items()
            if most
        ),
        default=None,
    )


def _named(path: Path, kinds: Mapping[str, str]) -> PerDevice:
    """Parse lines like ``8:0 rbps=max wbps=1048576``."""
    found = {}
    for device, *words in _lines(path):
        for word in words:
            name, _, number = word.partition("=")
            if name in kinds and number.isdigit():
                found[device, kinds[name]] = float(number)
    return found


def _lines(path: Path) -> list[list[str]]:
    try:
        return [words for line in path.read_text().splitlines() if (words := line.split())]
    except (OSError, UnicodeDecodeError):
        return []
