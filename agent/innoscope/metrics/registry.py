"""Reading and checking ``probes/catalog/metrics.yaml``: what every exported metric is called and means."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, Final

from innoscope.common.data import catalog_path, read_yaml, reading
from innoscope.common.errors import BadFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

PREFIX: Final = "innoscope_"
KINDS: Final = ("counter", "gauge", "histogram", "info")
#: All collectors; ``agent`` is what the agent knows of itself.
SOURCES: Final = ("probes", "memory", "sql", "waits", "process", "toggles", "agent")

#: Upper bounds of the exported buckets, as powers of two of nanoseconds: 16 µs to 69 s by factor 2. The same
#: whatever was measured, so that histograms of all servers can be added up.
BUCKETS: Final = tuple(range(14, 37))
#: Series of one histogram: its buckets, +Inf, sum and count.
HISTOGRAM_SERIES: Final = len(BUCKETS) + 3

_KEYS: Final = frozenset({"kind", "labels", "sources", "help", "own"})
_NAME: Final = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
#: What exposition formats add to names by themselves, and what OpenMetrics keeps for itself.
_SUFFIXES: Final = ("_total", "_count", "_sum", "_bucket", "_created")
#: Units that are not base units (Prometheus: "use seconds, bytes, ratio").
_BAD_UNITS: Final = re.compile(
    r"_(?:milliseconds|microseconds|nanoseconds|ms|us|ns|minutes|hours|days|percent|pct|kb|mb|kilobytes|megabytes)\b"
)
#: Labels that belong to a scrape's target, or to the exposition format.
_TAKEN_LABELS: Final = frozenset({"server", "job", "instance", "le", "quantile", "type_"})
_FROM: Final = re.compile(r"\([^()]+(?:\([^()]*\)[^()]*)*\)\.$")


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
    """Read and check the file; BadFile names the first problem."""
    path = path or catalog_path("metrics.yaml")
    data = read_yaml(path)
    with reading(path):
        found = problems(data)
        if found:
            raise BadFile(f"{path}: {found[0]}" + (f" (and {len(found) - 1} more)" if found[1:] else ""))
        return Registry({name: _metric(name, body) for name, body in data["metrics"].items()})


def _metric(name: str, body: dict[str, Any]) -> Metric:
    labels = tuple(
        Label(label, None, bound) if isinstance(bound, int) else Label(label, tuple(bound), len(bound))
        for label, bound in body.get("labels", {}).items()
    )
    return Metric(name, body["kind"], labels, tuple(body["sources"]), body["help"], body.get("own", False))


def problems(data: Any) -> list[str]:
    """What is wrong with a parsed metrics.yaml, in words; empty when nothing is."""
    if not isinstance(data, dict) or not isinstance(data.get("metrics"), dict):
        return ["metrics must be a mapping"]
    found = [f"unknown key {key!r}" for key in data.keys() - {"version", "metrics"}]
    if data.get("version") != 1:
        found.append("version is not 1")
    for name, body in data["metrics"].items():
        found += [f"{name}: {text}" for text in _metric_problems(str(name), body)]
    return found


def _metric_problems(name: str, body: Any) -> list[str]:
    if not isinstance(body, dict):
        return ["is not a mapping"]
    found = [f"unknown key {key!r}" for key in body.keys() - _KEYS]
    kind = body.get("kind")
    if kind not in KINDS:
        return [*found, f"unknown kind {kind!r}"]
    if not isinstance(body.get("own", False), bool):
        found.append("own is true or false")
    return [
        *found,
        *_name_problems(name, kind),
        *_label_problems(body.get("labels", {}), kind),
        *_source_problems(body.get("sources")),
        *_help_problems(body.get("help"), body.get("sources")),
    ]


def _name_problems(name: str, kind: str) -> list[str]:
    found = []
    if not _NAME.fullmatch(name):
        found.append("the name is not snake_case")
    if name.endswith(_SUFFIXES):
        found.append("the name ends with what the exposition format adds")
    if name.startswith(PREFIX):
        found.append(f"the name has {PREFIX} already")
    if _BAD_UNITS.search(name):
        found.append("the name has a unit that is not a base unit (seconds, bytes, ratio)")
    if name.endswith("_info") != (kind == "info"):
        found.append("info metrics, and only they, end with _info")
    if kind == "histogram" and not name.endswith("_seconds"):
        found.append("histograms are of seconds, and their names say so")
    return found


def _label_problems(labels: Any, kind: str) -> list[str]:
    if not isinstance(labels, dict):
        return ["labels must be a mapping"]
    found = []
    for label, bound in labels.items():
        if not _NAME.fullmatch(str(label)) or label in _TAKEN_LABELS:
            found.append(f"label {label!r} is not snake_case, or has another meaning")
        listed = isinstance(bound, list) and bound and all(isinstance(value, str) for value in bound)
        if not listed and (not isinstance(bound, int) or isinstance(bound, bool) or bound < 1):
            found.append(f"label {label} is bounded neither by a list of values nor by a number")
        elif listed and len(set(bound)) < len(bound):
            found.append(f"label {label} has a value twice")
    if kind == "info" and not labels:
        found.append("an info metric without labels says nothing")
    return found


def _source_problems(sources: Any) -> list[str]:
    if not isinstance(sources, list) or not sources:
        return ["sources must be a list"]
    return [f"unknown source {source!r}" for source in sources if source not in SOURCES]


def _help_problems(text: Any, sources: Any) -> list[str]:
    """A sentence, and where the number comes from: in parentheses, unless it is only known to ourselves."""
    if not isinstance(text, str) or not text.endswith(".") or "\n" in text:
        return ["help is not one line that ends with a full stop"]
    if sources != ["agent"] and not _FROM.search(text):
        return ["help does not end with where the number comes from, in parentheses"]
    return []
