"""Load the metrics that are declared in ``probes/catalog/metrics.yaml``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Final

from innoscope.common import metrics_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from innoscope.common.metrics_file import Declaration

PREFIX: Final = metrics_file.PREFIX

#: Upper bounds of the exported buckets, as exponents of powers of two in nanoseconds (16 µs to 69 s). All
#: histograms have the same bounds, so that they can be aggregated across servers.
BUCKETS: Final = tuple(range(14, 37))
#: Number of series of one histogram: its buckets, +Inf, sum and count.
HISTOGRAM_SERIES: Final = len(BUCKETS) + 3


@dataclass(frozen=True, slots=True)
class Label:
    """A label and its allowed ``values``. If ``values`` is None, at most ``most`` are exported."""

    name: str
    values: tuple[str, ...] | None
    most: int


@dataclass(frozen=True, slots=True)
class Metric:
    """One declared metric. ``own`` marks Innoscope's own metrics; all others have a ``server`` label."""

    name: str
    kind: str
    labels: tuple[Label, ...]
    sources: tuple[str, ...]
    help: str
    own: bool

    @property
    def exported(self) -> str:
        """Return the name to use in queries; for a histogram, the name without the suffix ``_bucket``."""
        return PREFIX + self.name + ("_total" if self.kind == "counter" else "")

    @property
    def most_series(self) -> int:
        """Return the maximum number of series for one server."""
        each = HISTOGRAM_SERIES if self.kind == "histogram" else 1
        return each * prod(label.most for label in self.labels)


class Registry:
    """All metrics by name, in the order of the file."""

    def __init__(self, metrics: Mapping[str, Metric]) -> None:
        self._metrics = dict(metrics)

    def __getitem__(self, name: str) -> Metric:
        return self._metrics[name]

    def __contains__(self, name: object) -> bool:
        return name in self._metrics

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._metrics.values())

    def __len__(self) -> int:
        return len(self._metrics)


@cache
def default() -> Registry:
    """Return the registry that is installed with Innoscope."""
    return load()


def load(path: Path | None = None) -> Registry:
    """Build the registry from a file, by default the installed one. Raise BadFile if it is invalid."""
    declared = metrics_file.load(path) if path else metrics_file.installed()
    return Registry({name: _metric(name, body) for name, body in declared.items()})


def _metric(name: str, body: Declaration) -> Metric:
    labels = tuple(
        Label(label, None, bound) if isinstance(bound, int) else Label(label, bound, len(bound))
        for label, bound in body.labels.items()
    )
    return Metric(name, body.kind, labels, body.sources, body.help, body.own)
