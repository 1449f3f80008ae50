"""Choose the SQL source of each series for one connection: the first one that the server provides."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from innoscope.common.samples import Sample
from innoscope.metrics.collectors import monitor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from innoscope.metrics.collectors.sql_catalog import SqlCatalog, SqlSeries, SqlSource

Number = int | float


@dataclass(slots=True)
class Answers:
    """A server's values by name, and the text of the InnoDB monitor by section.

    The mapping for a kind that was not queried is empty.
    """

    status: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    counters: Mapping[str, Number] = field(default_factory=dict)
    monitor: Mapping[str, str] = field(default_factory=dict)

    def value(self, source: SqlSource) -> Number | None:
        """Return the source's scaled value; None if the server does not have it."""
        number: Number | None
        if source.when is not None and self.variables.get(source.when) != "ON":
            return None
        match source.kind:
            case "status":
                number = _of_text(source, self.status.get(source.name))
            case "variable":
                number = _of_text(source, self.variables.get(source.name))
            case "counter":
                number = self.counters.get(source.name)
            case "monitor":
                read = monitor.total if source.sum else monitor.number
                number = read(self.monitor, source.name, source.line) if source.line else None
            case _:
                number = FORMULAS[source.name].compute(self.variables)
        if number is None or source.scale == 1:
            return number
        return number * source.scale


def _of_text(source: SqlSource, text: str | None) -> Number | None:
    return int(text in source.texts) if source.texts and text is not None else _number(text)


def _number(text: str | None) -> Number | None:
    if text is None:
        return None
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Formula:
    """A function that computes a value from system variables, and the names of those variables."""

    variables: tuple[str, ...]
    compute: Callable[[Mapping[str, str]], Number | None]


_REDO_VARIABLES: Final = (
    "innodb_log_file_size",
    "innodb_log_files_in_group",
    "innodb_page_size",
    "innodb_thread_concurrency",
)


def _classic_redo_limit(variables: Mapping[str, str]) -> Number | None:
    """Return the checkpoint age in bytes at which writers wait (log0log.c, log_calc_max_ages, 5.0 to 5.7).

    The result is the size of all log files minus, in this order:

    * a header of four 512-byte blocks per file,
    * a tenth of the remaining size,
    * four pages for each of 10 + innodb_thread_concurrency threads, and eight more pages,
    * a tenth of the remainder.
    """
    numbers = [_number(variables.get(name)) for name in _REDO_VARIABLES]
    size, files, page, threads = numbers[0], numbers[1], numbers[2] or 16384, numbers[3] or 0
    if size is None or files is None:
        return None
    capacity = (int(size) - 4 * 512) * int(files)
    capacity -= capacity // 10
    margin = capacity - int(page) * (4 * (10 + int(threads)) + 8)
    return margin - margin // 10 if margin > 0 else None


_CHANGE_BUFFER_VARIABLES: Final = (
    "innodb_buffer_pool_size",
    "innodb_page_size",
    "innodb_change_buffer_max_size",
)


def _change_buffer_limit(variables: Mapping[str, str]) -> Number | None:
    """Return the maximum number of pages in the change buffer.

    See ibuf_max_size_update (ibuf0ibuf.cc in MySQL 5.7 and 8.0).
    """
    pool, page, percentage = (_number(variables.get(name)) for name in _CHANGE_BUFFER_VARIABLES)
    if pool is None or not page or percentage is None:
        return None
    return int(pool) // int(page) * int(percentage) // 100


FORMULAS: Final[Mapping[str, Formula]] = {
    "classic_redo_limit": Formula(_REDO_VARIABLES, _classic_redo_limit),
    "change_buffer_limit": Formula(_CHANGE_BUFFER_VARIABLES, _change_buffer_limit),
}


@dataclass(frozen=True, slots=True)
class SqlPlan:
    """The chosen source of each series."""

    chosen: tuple[tuple[SqlSeries, SqlSource], ...]

    def names(self, kind: str) -> list[str]:
        """Return the sorted names to query for this kind.

        Variables include the inputs of formulas, and the conditions (``when``) of all sources.
        """
        found = {source.name for _, source in self.chosen if source.kind == kind}
        if kind == "variable":
            used = (FORMULAS[source.name] for _, source in self.chosen if source.kind == "formula")
            found |= {name for formula in used for name in formula.variables}
            found |= {source.when for _, source in self.chosen if source.when is not None}
        return sorted(found)

    def samples(self, answers: Answers) -> list[Sample]:
        """Return a sample for each series that has a number in ``answers``."""
        values = ((entry, answers.value(source)) for entry, source in self.chosen)
        return [Sample(entry.metric, value, entry.labels) for entry, value in values if value is not None]


def variables_of(catalog: SqlCatalog) -> list[str]:
    """Return all system variables that the catalog may use, sorted."""
    every = [source for entry in catalog.entries for source in entry.sources]
    return SqlPlan(tuple((catalog.entries[0], source) for source in every)).names("variable")


def make(
    catalog: SqlCatalog, flavour: str, version: tuple[int, ...], answers: Answers, kinds: Iterable[str]
) -> tuple[SqlPlan, bool]:
    """Return a plan based on the kinds queried so far, and whether another kind could add a source."""
    queried = frozenset(kinds)
    chosen = []
    incomplete = False
    for entry in catalog.entries:
        for source in entry.sources:
            if not source.fits(flavour, version):
                continue
            if source.kind not in queried:
                incomplete = True
            elif answers.value(source) is not None:
                chosen.append((entry, source))
                break
    return SqlPlan(tuple(chosen)), incomplete
