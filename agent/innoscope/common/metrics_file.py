"""Read ``probes/catalog/metrics.yaml``, which lists the name and meaning of every exported metric.

This module does not depend on the metrics registry, because the lower layer ``probes`` also reads the file,
to number its counters.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Annotated, Final, Literal

from msgspec import Meta, field

from innoscope.common.data import catalog_path
from innoscope.common.schema import Entry, read_yaml

if TYPE_CHECKING:
    from pathlib import Path

PREFIX: Final = "innoscope_"
Kind = Literal["counter", "gauge", "histogram", "info"]
#: Sources of metrics: the collectors, and ``agent`` for the agent's own metrics.
Source = Literal["probes", "memory", "sql", "state", "waits", "process", "toggles", "agent"]
_NAME: Final = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
#: Suffixes that exposition formats add to names, and suffixes that OpenMetrics reserves.
_SUFFIXES: Final = ("_total", "_count", "_sum", "_bucket", "_created")
#: Units that are not base units. Prometheus recommends base units: seconds, bytes, ratios.
_BAD_UNITS: Final = re.compile(
    r"_(?:milliseconds|microseconds|nanoseconds|ms|us|ns|minutes|hours|days|percent|pct|kb|mb|kilobytes|megabytes)\b"
)
#: Reserved labels: they identify the server or the scrape's target, or the exposition format uses them.
_TAKEN_LABELS: Final = frozenset({"server", "job", "instance", "le", "quantile", "type_"})
_FROM: Final = re.compile(r"\([^()]+(?:\([^()]*\)[^()]*)*\)\.$")


class Declaration(Entry, frozen=True):
    """The declaration of one metric in the file."""

    kind: Kind
    sources: Annotated[tuple[Source, ...], Meta(min_length=1)]
    help: str
    labels: dict[str, Annotated[int, Meta(ge=1)] | Annotated[tuple[str, ...], Meta(min_length=1)]] = field(
        default_factory=dict
    )
    own: bool = False
    no_panel: str | None = None

    def __post_init__(self) -> None:
        """Check the constraints that the types cannot express. Raise ValueError if one is violated."""
        if self.kind == "info" and not self.labels:
            raise ValueError("an info metric needs labels")
        for label, bound in self.labels.items():
            if not _NAME.fullmatch(label) or label in _TAKEN_LABELS:
                raise ValueError(f"label {label!r} is not snake_case, or is reserved")
            if not isinstance(bound, int) and len(set(bound)) < len(bound):
                raise ValueError(f"label {label} has a duplicate value")
        if not self.help.endswith(".") or "\n" in self.help:
            raise ValueError("help must be one line that ends with a full stop")
        # Metrics that only the agent exports need no source in their help text.
        if self.sources != ("agent",) and not _FROM.search(self.help):
            raise ValueError("help must end with the source of the number, in parentheses")


class MetricsFile(Entry, frozen=True):
    """The contents of metrics.yaml."""

    version: Literal[1]
    metrics: dict[str, Declaration]

    def __post_init__(self) -> None:
        """Check the names of the metrics. Raise ValueError if one is invalid."""
        for name, declared in self.metrics.items():
            if problem := _name_problem(name, declared.kind):
                raise ValueError(f"metrics.{name}: {problem}")


def _name_problem(name: str, kind: str) -> str | None:
    if not _NAME.fullmatch(name):
        return "the name is not snake_case"
    if name.endswith(_SUFFIXES):
        return "the name ends with a suffix that the exposition format adds"
    if name.startswith(PREFIX):
        return f"the name already starts with {PREFIX}"
    if _BAD_UNITS.search(name):
        return "the name has a unit that is not a base unit (seconds, bytes, ratio)"
    if name.endswith("_info") != (kind == "info"):
        return "the names of info metrics, and only these, end with _info"
    if kind == "histogram" and not name.endswith("_seconds"):
        return "histograms are in seconds: the name must end with _seconds"
    return None


@cache
def installed() -> dict[str, Declaration]:
    """Return the metrics in the installed metrics.yaml. Raise BadFile if it is invalid."""
    return load(catalog_path("metrics.yaml"))


def load(path: Path) -> dict[str, Declaration]:
    """Read and check a metrics file. Return its metrics, in file order. Raise BadFile if it is invalid."""
    return read_yaml(path, MetricsFile).metrics
