"""Read InnoDB's counters and variables from a live server's memory.

The server is not stopped, queried or changed. Only process_vm_readv is used, so this also works on a server
that hangs, is in crash recovery or is stopped.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from innoscope.common.cache import Cache
from innoscope.common.errors import NotRead
from innoscope.memory import catalog as catalogs
from innoscope.memory import layout as layouts
from innoscope.memory import numbers, plan, tables
from innoscope.memory.layout import Debug
from innoscope.memory.regions import Image
from innoscope.target.discover import still_same
from innoscope.target.native_errors import gone
from innoscope.target.proc import ProcFs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from innoscope.memory.catalog import Catalog
    from innoscope.memory.numbers import Number
    from innoscope.target.model import Target

_Found = TypeVar("_Found")

#: Seconds after a server's start during which the dynamic linker has possibly not relocated its tables yet.
_YOUNG_S: Final = 10.0
#: Seconds until the memory of a server that just started is searched for the tables again.
_AGAIN_S: Final = 1.0
#: Limit on the bytes read of a string variable.
_STRING_BYTES: Final = 512


@dataclass(frozen=True, slots=True)
class Explanation:
    """The ``source`` of a value, or the ``reason`` why the value cannot be read and a ``remedy``."""

    value: str
    source: str | None
    reason: str | None = None
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class StatusValue:
    """A status variable's value. ``live`` is false if only SHOW STATUS updates it."""

    value: Number
    live: bool


class MemoryReader:
    """Reads values from one server. The first read finds the addresses of the values, which can take seconds.

    Later reads take 0.1 ms. ``cache`` is the cache folder (default: ``cache_folder()``), ``debug`` has the
    locations of debug files. All methods raise NoSuchProcess, NoRights, NotRead if a limit is exceeded, or
    BadFile if the executable is malformed. Not thread-safe.
    """

    def __init__(
        self,
        target: Target,
        *,
        catalog: Catalog | None = None,
        cache: Path | None = None,
        debug: Debug | None = None,
    ) -> None:
        self._target = target
        self._catalog = catalog or catalogs.load()
        self._cache = Cache("layouts", 64, cache)
        self._debug = debug or Debug()
        self._plan: plan.Plan | None = None
        self._last: Mapping[str, Number] | None = None
        self._status: dict[str, tables.Status] | None = None
        self._variables: dict[str, tables.Variable] | None = None
        #: Time of the last search that found no table shortly after the server's start, else None.
        self._unrelocated: float | None = None
        self._image: Image | None = None
        #: The error if the server's process exceeded a limit; its memory is then not searched again.
        self._exceeded: NotRead | None = None

    def read(self) -> Mapping[str, Number]:
        """Return the numbers by their names in probes/catalog/memory.yaml.

        ``explain`` returns the reasons for missing values.
        """
        readings = self._planned().readings
        terms = [term for reading in readings for term in (*reading.terms, *_optional(reading.when))]
        found = self._read(terms)
        self._last = {
            reading.value: number for reading in readings if (number := _value(reading, found)) is not None
        }
        return self._last

    def explain(self) -> list[Explanation]:
        """Return an explanation for each value of the catalog, in catalog order."""
        planned = self._planned()
        last = self.read() if self._last is None else self._last
        explanations = {
            reading.value: _explanation(reading, reading.value in last) for reading in planned.readings
        }
        explanations |= {
            absent.value: Explanation(absent.value, None, absent.reason, absent.remedy)
            for absent in planned.absent
        }
        return [explanations[value] for value in self._catalog.values]

    def status(self) -> Mapping[str, StatusValue]:
        """Return InnoDB's numeric status variables, named as in SHOW STATUS; empty if no table was found."""
        self._begin()
        table = self._status_table()
        terms = {name: plan.variable_term(one.address, one.type) for name, one in table.items()}
        found = self._read(terms.values())
        return {
            name: StatusValue(number, table[name].live)
            for name, term in terms.items()
            if (number := found[term]) is not None
        }

    def variables(self) -> Mapping[str, Number | str]:
        """Return InnoDB's global system variables, named as in SHOW VARIABLES; empty if no table was found.

        Booleans are 0 or 1, enumerations are names, sets are bit masks, and NULL strings are "".
        """
        self._begin()
        table = self._variable_table()
        numeric = {name: one for name, one in table.items() if one.type in plan.TYPES}
        terms = {name: plan.variable_term(one.address, one.type) for name, one in numeric.items()}
        found = self._read(terms.values())
        values: dict[str, Number | str] = dict(self._strings(table))
        for name, term in terms.items():
            number = found[term]
            choices = numeric[name].choices
            if number is not None:
                values[name] = choices[int(number)] if 0 <= number < len(choices) else number
        return values

    def _planned(self) -> plan.Plan:
        if self._plan is None:
            self._begin()
            names = {layouts.root(path) for path in self._catalog.paths}
            names |= {s.symbol for sources in self._catalog.values.values() for s in sources if s.symbol}
            layout = layouts.learn(self._target, sorted(names), self._catalog.paths, self._debug, self._cache)
            made = plan.make(self._target, self._catalog, layout, self._status_table, self._variable_table)
            if self._unrelocated is None:
                self._plan = made
            return made
        return self._plan

    def _begin(self) -> None:
        """Allow another search if the last one failed because the server had just started.

        Raises NotRead if this process exceeded a limit before.
        """
        if self._exceeded is not None:
            raise NotRead(self._exceeded.what, remedy=self._exceeded.remedy)
        if self._unrelocated is not None and time.monotonic() - self._unrelocated >= _AGAIN_S:
            self._unrelocated = self._status = self._variables = None
        self._image = None

    def _status_table(self) -> dict[str, tables.Status]:
        if self._status is None:
            flavour = self._target.flavour
            self._status = self._search(
                lambda image: tables.status_variables(image, self._catalog.tables.status, flavour)
            )
        return self._status

    def _variable_table(self) -> dict[str, tables.Variable]:
        if self._variables is None:
            self._variables = self._search(
                lambda image: tables.system_variables(image, self._catalog.tables.variables)
            )
        return self._variables

    def _search(self, search: Callable[[Image], dict[str, _Found]]) -> dict[str, _Found]:
        try:
            self._image = self._image or Image(self._target.pid)
            found = search(self._image)
        except NotRead as error:
            self._exceeded = NotRead(error.what, remedy=error.remedy)
            raise
        started = self._target.start_time / os.sysconf("SC_CLK_TCK")
        young = time.clock_gettime(time.CLOCK_BOOTTIME) - started < _YOUNG_S
        if young and not found:
            self._unrelocated = time.monotonic()
        return found

    def _read(self, terms: Iterable[plan.Term]) -> dict[plan.Term, Number | None]:
        found = numbers.read(self._target.pid, terms)
        if not still_same(self._target, ProcFs()):
            raise gone(self._target.pid)
        return found

    def _strings(self, table: Mapping[str, tables.Variable]) -> Iterator[tuple[str, str]]:
        """Yield the names and values of string variables, except those longer than the limit.

        A string at the end of a mapping is also omitted.
        """
        names = [name for name, one in table.items() if one.type == "string"]
        terms = {name: plan.variable_term(table[name].address, "uint64") for name in names}
        found = self._read(terms.values())
        pointers = [int(found[terms[name]] or 0) for name in names]
        raw = numbers.read_many(self._target.pid, [(pointer, _STRING_BYTES) for pointer in pointers])
        for name, pointer, content in zip(names, pointers, raw, strict=True):
            text, end, _ = (content or b"").partition(b"\0")
            if end or not pointer:
                yield name, text.decode(errors="replace")


def _optional(term: plan.Term | None) -> tuple[plan.Term, ...]:
    return () if term is None else (term,)


def _value(reading: plan.PlannedValue, found: Mapping[plan.Term, Number | None]) -> Number | None:
    """Return a planned value; None if the server has not initialised the structure yet."""
    if reading.when is not None and not found[reading.when]:
        return 0
    total: Number = 0
    for term in reading.terms:
        number = found[term]
        if number is None:
            return None
        total += number
    if reading.settled and not total:
        return None
    if reading.bits is not None:
        first, end = reading.bits
        total = (int(total) >> first) & ((1 << (end - first)) - 1)
    return total if reading.scale is None else total * reading.scale


def _explanation(reading: plan.PlannedValue, has_value: bool) -> Explanation:
    if has_value:
        return Explanation(reading.value, reading.origin)
    if reading.settled:
        return Explanation(
            reading.value,
            None,
            f"{reading.origin} was never updated",
            "run SHOW GLOBAL STATUS once, as any account",
        )
    return Explanation(
        reading.value,
        None,
        "the server is starting or stopping, and its structure is not initialised",
        "retry in a second",
    )
