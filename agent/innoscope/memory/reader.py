"""Read InnoDB's counters and variables from a live server's memory.

The server is not stopped, queried or changed. Its memory is read with process_vm_readv, so this also works on
a server that hangs, is in crash recovery or is stopped.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from innoscope.common.cache import Cache
from innoscope.common.errors import NotRead
from innoscope.memory import catalog as catalogs
from innoscope.memory import known_layouts, numbers, plan, tables
from innoscope.memory import layout as layouts
from innoscope.memory.layout import Debug
from innoscope.memory.regions import Image
from innoscope.target.discover import still_same
from innoscope.target.native_errors import gone
from innoscope.target.proc import ProcFs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from innoscope.memory.catalog import Clock
    from innoscope.memory.numbers import Number
    from innoscope.target.model import Target

_Found = TypeVar("_Found")
_Elements: TypeAlias = "Mapping[numbers.Term, Sequence[Number] | None]"

#: Seconds after a server's start during which the dynamic linker may not have relocated the tables yet.
_YOUNG_S: Final = 10.0
#: Seconds until the memory of a server that has just started is searched for the tables again.
_AGAIN_S: Final = 1.0
#: Maximum number of bytes read from a string variable.
_STRING_BYTES: Final = 512
#: Size in bytes of a redo log block (log0constants.h in 9.7.2).
_BLOCK: Final = 512
#: Size in bytes of a block's header.
_BLOCK_HEADER: Final = 12
#: Size in bytes of a block's payload, between the header and a trailer of 4 bytes.
_PAYLOAD: Final = _BLOCK - _BLOCK_HEADER - 4


@dataclass(frozen=True, slots=True)
class Explanation:
    """The ``source`` of a value, or the ``reason`` why the value cannot be read and a ``remedy``."""

    value: str
    source: str | None
    reason: str | None = None
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class StatusValue:
    """The value of a status variable. ``live`` is false if only SHOW STATUS updates the value."""

    value: Number
    live: bool


class MemoryReader:
    """Reads values from one server. The first read locates the values, which can take seconds.

    Later reads take less than 1 ms. ``cache`` is the cache directory (default: ``cache_folder()``); ``debug``
    contains the locations of debug files. All methods raise NoSuchProcess if the server has exited, NoRights
    if we are not allowed to read it, NotRead if a limit is exceeded or the debug information cannot be read,
    or BadFile if the executable is malformed. Not thread-safe.
    """

    def __init__(
        self,
        target: Target,
        *,
        cache: Path | None = None,
        debug: Debug | None = None,
    ) -> None:
        self._target = target
        self._catalog = catalogs.load()
        self._cache = Cache("layouts", 64, cache)
        self._debug = debug or Debug()
        self._plan: plan.MemoryPlan | None = None
        self._remedy = ""
        self._known = known_layouts.of(target)
        #: Checks of the catalog's layout that values have not passed yet.
        self._checks = known_layouts.checks(self._known, self.variables) if self._known else ()
        #: The values that are withheld until their checks pass, with the reason.
        self._withheld: Mapping[str, str] = {}
        self._last: Mapping[str, Number] | None = None
        self._status: dict[str, tables.StatusVariable] | None = None
        self._variables: dict[str, tables.SystemVariable] | None = None
        #: Time of the last search that found no table because the server had just started, else None.
        self._unrelocated: float | None = None
        self._image: Image | None = None
        #: The error if the process exceeded a limit; its memory is then not searched again.
        self._exceeded: NotRead | None = None

    def read(self) -> Mapping[str, Number]:
        """Return the numbers, keyed by their names in probes/catalog/memory.yaml.

        ``explain`` returns the reasons for missing values.
        """
        planned = self._planned()
        readings = (*planned.readings, *(planned.witnesses if self._checks else ()))
        # Read flags before times; otherwise an element that is reused in between would look too old.
        found = self._read_elements(
            term
            for one in readings
            for term in (
                one.flags,
                *one.terms,
                *one.minus,
                one.when,
                one.reserve,
                one.per,
                *(one.plus or ())[:1],
            )
            if term is not None
        )
        least = self._least(readings, found)
        now: Mapping[Clock, float] = {"unix": time.time(), "monotonic": time.monotonic()}
        values = {
            one.value: number for one in readings if (number := value_of(one, found, least, now)) is not None
        }
        self._withheld, pending = known_layouts.run_checks(self._checks, readings, values)
        if self._plan is not None:
            self._checks = pending
        hidden = self._withheld.keys() | {witness.value for witness in planned.witnesses}
        self._last = {value: number for value, number in values.items() if value not in hidden}
        return self._last

    def _least(self, readings: Iterable[plan.PlannedValue], found: _Elements) -> dict[str, Number]:
        """Return, for each value, the minimum of a member over all objects in an array of pointers.

        The minimum is 0 if all pointers are NULL.
        """
        objects = {
            reading.value: [
                numbers.Term(int(pointer), reading.least)
                for pointer in (found[reading.terms[0]] or ())
                if pointer
            ]
            for reading in readings
            if reading.least is not None
        }
        values = self._read(term for terms in objects.values() for term in terms)
        return {
            value: min((number for term in terms if (number := values[term]) is not None), default=0)
            for value, terms in objects.items()
        }

    def explain(self) -> list[Explanation]:
        """Return an explanation for each value in the catalog, in catalog order."""
        planned = self._planned()
        last = self.read() if self._last is None else self._last
        explanations = {
            reading.value: Explanation(reading.value, None, self._withheld[reading.value], self._remedy)
            if reading.value in self._withheld
            else _explanation(reading, reading.value in last)
            for reading in planned.readings
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
        """Return InnoDB's global-only variables, named as in SHOW VARIABLES; empty if no table was found.

        Booleans are 0 or 1, enumerations are value names, sets are bit masks, and NULL strings are "".
        Strings of 512 bytes or more are omitted.
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

    def _planned(self) -> plan.MemoryPlan:
        if self._plan is None:
            self._begin()
            names = {layouts.root(path) for path in self._catalog.paths}
            names |= self._catalog.symbols | (self._known.symbols if self._known else set())
            layout = layouts.learn(
                self._target,
                sorted(names),
                self._catalog.paths,
                self._debug,
                self._cache,
                self._catalog.types,
            )
            if self._known and not layout.described:
                layout = known_layouts.describe(self._known, self._target.pid, layout, self._status_table)
            self._remedy = plan.remedy(self._target, layout)
            made = plan.make(self._target, self._catalog, layout, self._status_table, self._variable_table)
            if self._unrelocated is None:
                self._plan = made
            return made
        return self._plan

    def _begin(self) -> None:
        """Allow another search if the last one failed because the server had just started.

        Raise NotRead if this process has already exceeded a limit.
        """
        if self._exceeded is not None:
            raise NotRead(self._exceeded.what, remedy=self._exceeded.remedy)
        if self._unrelocated is not None and time.monotonic() - self._unrelocated >= _AGAIN_S:
            self._unrelocated = self._status = self._variables = None
        self._image = None

    def _status_table(self) -> dict[str, tables.StatusVariable]:
        if self._status is None:
            flavour = self._target.flavour
            self._status = self._search(
                lambda image: tables.status_variables(image, self._catalog.tables.status, flavour)
            )
        return self._status

    def _variable_table(self) -> dict[str, tables.SystemVariable]:
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

    def _read(self, terms: Iterable[numbers.Term]) -> dict[numbers.Term, Number | None]:
        return {term: _sum(elements) for term, elements in self._read_elements(terms).items()}

    def _read_elements(self, terms: Iterable[numbers.Term]) -> _Elements:
        found = numbers.read_elements(self._target.pid, terms)
        if not still_same(self._target, ProcFs()):
            raise gone(self._target.pid)
        return found

    def _strings(self, table: Mapping[str, tables.SystemVariable]) -> Iterator[tuple[str, str]]:
        """Yield the names and values of string variables, except those longer than the limit.

        Strings that start less than _STRING_BYTES before unmapped memory are omitted too, because the whole
        read fails.
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


def _sum(elements: Sequence[Number] | None) -> Number | None:
    return None if elements is None else sum(elements)


def value_of(
    reading: plan.PlannedValue, found: _Elements, least: Mapping[str, Number], now: Mapping[Clock, float]
) -> Number | None:
    """Return a planned value; None if it could not be read, or was never updated (``settled``)."""
    if reading.when is not None and not _sum(found[reading.when]):
        return 0
    if reading.flags is not None:
        times, flags = found[reading.terms[0]], found[reading.flags]
        return _oldest(times, flags, now[reading.clock], reading.scale or 1)
    total = _total(reading, found)
    if total is None or (reading.settled and not total):
        return None
    if reading.least is not None:
        return least[reading.value]
    if reading.bits is not None:
        total = _cut(int(total), reading.bits)
    if reading.unit == "sn":
        total = _lsn(int(total))
    return total if reading.scale is None else total * reading.scale


def _total(reading: plan.PlannedValue, found: _Elements) -> Number | None:
    """Return the sum of the terms after applying ``minus``, ``reserve``, ``plus`` and ``per``.

    Return None if one of them was not read.
    """
    total: Number = 0
    for sign, terms in ((1, reading.terms), (-1, reading.minus)):
        for term in terms:
            number = _sum(found[term])
            if number is None:
                return None
            total += sign * number
    if reading.reserve is not None and not _sum(found[reading.reserve]):
        total = max(0, total - 1)
    if reading.plus is not None:
        term, bits = reading.plus
        part = _sum(found[term])
        if part is None:
            return None
        total += _cut(int(part), bits)
    if reading.per is not None:
        divisor = _sum(found[reading.per])
        return total // divisor if divisor else None
    return total


def _cut(number: int, bits: tuple[int, int]) -> int:
    first, end = bits
    return (number >> first) & ((1 << (end - first)) - 1)


def _lsn(sn: int) -> int:
    """Convert a sequence number, which counts only the payload of redo log blocks, to an LSN."""
    blocks, rest = divmod(sn, _PAYLOAD)
    return blocks * _BLOCK + rest + _BLOCK_HEADER


def _oldest(
    times: Sequence[Number] | None, flags: Sequence[Number] | None, now: float, scale: float
) -> Number | None:
    """Return the age of the oldest time whose flag is set; 0 if no flag is set."""
    if times is None or flags is None:
        return None
    # The two arrays are read at different times, so their lengths can differ.
    ages = (now - time * scale for time, flag in zip(times, flags, strict=False) if flag)
    return max(0, *ages, 0)


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
        "the structure is not initialized (the server is starting or stopping), or is too large to read",
        "retry in a second",
    )
