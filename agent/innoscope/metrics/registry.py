"""The metrics that ``probes/catalog/metrics.yaml`` declares, by name."""

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

#: Upper bounds of the exported buckets, as powers of two of nanoseconds: 16 µs to 69 s by factor 2. The same
#: whatever was measured, so that histograms of all servers can be added up.
BUCKETS: Final = tuple(range(14, 37))
#: Series of one histogram: its buckets, +Inf, sum and count.
HISTOGRAM_SERIES: Final = len(BUCKETS) + 3


@dataclass(frozen=True, slots=True)
class Label:
    """A label and its bound: the values it may have, else how many there may be."""

    name: str
    values: tuple[str, ...] | None
    most: int


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric as declared. ``own`` ones are about Innoscope, the others carry a ``server`` label too."""

    name: str
    kind: str
    labels: tuple[Label, ...]
    sources: tuple[str, ...]
    help: str
    own: bool

    @property
    def exported(self) -> str:
        """The name of its series, as a person queries them (of a histogram: without ``_bucket``)."""
        return PREFIX + self.name + ("_total" if self.kind == "counter" else "")

    @property
    def most_series(self) -> int:
        """How many series it can make for one server."""
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
    """The registry that is installed with the program."""
    return load()


def load(path: Path | None = None) -> Registry:
    """Build the registry from a file, by default the installed one. Raises BadFile."""
    declared = metrics_file.load(path) if path else metrics_file.installed()
    return Registry({name: _metric(name, body) for name, body in declared.items()})


def _metric(name: str, body: Declaration) -> Metric:
    labels = tuple(
        Label(label, None, bound) if isinstance(bound, int) else Label(label, bound, len(bound))
        for label, bound in body.labels.items()
    )
    return Metric(name, body.kind, labels, body.sources, body.help, body.own)
