"""Rules such as ``threads_running>50``: what is to be watched, and when it has come. Pure functions.

======================  ============================================================================
``share.row_lock>0.5``  any signal of findings (diagnose/signals.py), as of the last few seconds
``threads_running>50``  a few numbers by the names that DBAs know them by (``PLAIN``)
``response_time>200ms`` mean time that a statement takes, by Little's law: threads that have something to
                        do divided by statements a second
``finding:NAME``        `innoscope diagnose` would report it of the last ten seconds
======================  ============================================================================

A number may have a unit: ``%``, ``us``, ``ms``, ``s``, ``K``, ``M``, ``G`` (of 1024).
"""

from __future__ import annotations

import difflib
import math
import operator
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from innoscope.common.errors import ExitCode, InnoscopeError
from innoscope.diagnose.facts import FACTS
from innoscope.diagnose.rules import default_rules
from innoscope.diagnose.signals import OF_CLASSES, OF_METRICS, Signals
from innoscope.diagnose.unavailable import Unknown
from innoscope.diagnose.verdict import judge
from innoscope.metrics.registry import default
from innoscope.sampling.classify import default_classifier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from innoscope.diagnose.evidence import Evidence

FINDING: Final = "finding:"
RESPONSE_TIME: Final = "response_time"
ACTIVE: Final = "active"
#: Names of DBAs, and the signals that they are.
PLAIN: Final[Mapping[str, str]] = {
    "threads_running": "last.connections_running",
    "threads_connected": "last.connections",
    "threads_busy": ACTIVE,
    "checkpoint_age": "last.checkpoint_age_bytes",
    "checkpoint_age_ratio": "last.checkpoint_age_ratio",
    "dirty_ratio": "last.buffer_pool_dirty_ratio",
    "history_list": "last.history_list_length",
    "statement_rate": "fact.statement_rate",
    "connections_ratio": "fact.connections_ratio",
}
#: Seconds of evidence that a rule is judged by: two readings and looks; for a finding what diagnose takes.
RECENT_S: Final = 2.5
FINDING_S: Final = 10.0

_RULE: Final = re.compile(
    r"\s*([a-z][a-z0-9_.:/]*)\s*(>=|<=|>|<)\s*(-?[0-9.]+(?:e-?[0-9]+)?)\s*([A-Za-zµ%]*)\s*"
)
_OPERATORS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_UNITS: Final = {
    "": 1.0, "%": 0.01, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0,
    "k": 1024.0, "m": 1024.0**2, "g": 1024.0**3,
}  # fmt: skip
#: Names that an error tells of those that there are.
_SOME: Final = 12
_EXAMPLES: Final = "for example threads_running>50, share.row_lock>0.5, finding:flushing_storm"


class BadTrigger(InnoscopeError):
    """A rule that cannot be understood, or is of nothing that there is."""

    exit_code = ExitCode.USAGE


@dataclass(frozen=True, slots=True)
class Trigger:
    """One rule. ``text`` is as it was given; a finding has no number to compare with."""

    text: str
    name: str
    compare: str = ""
    number: float = 0.0

    @property
    def finding(self) -> str | None:
        """The finding that it waits for."""
        return self.name.removeprefix(FINDING) if self.name.startswith(FINDING) else None

    @property
    def window_s(self) -> float:
        """Seconds of evidence that it wants."""
        return FINDING_S if self.finding else RECENT_S

    def value(self, evidence: Evidence) -> float:
        """The number now; of a finding its score, 0 where there is none. Raises Unknown."""
        return value(self.name, Signals(evidence))

    def holds(self, now: float) -> bool:
        """Whether a value is what is waited for."""
        return now > 0 if self.finding else _OPERATORS[self.compare](now, self.number)


def parse(text: str) -> Trigger:
    """Read a rule. Raises BadTrigger, which says what is known."""
    if text.startswith(FINDING):
        _require_known(text, text.strip())
        return Trigger(text, text.strip())
    match = _RULE.fullmatch(text)
    if match is None:
        raise BadTrigger(f"{text!r} is no trigger: a name, one of > >= < <=, a number", remedy=_EXAMPLES)
    name, compare, digits, unit = match.groups()
    _require_known(text, name)
    if unit.lower() not in _UNITS:
        raise BadTrigger(f"{text!r}: {unit!r} is no unit", remedy="one of % us ms s K M G, or none")
    try:
        number = float(digits) * _UNITS[unit.lower()]
    except ValueError:
        raise BadTrigger(f"{text!r}: {digits!r} is no number", remedy=_EXAMPLES) from None
    return Trigger(text, name, compare, number)


def value(name: str, signals: Signals) -> float:
    """What a name that rules may use stands for. Raises Unknown."""
    if name.startswith(FINDING):
        found = {one.name: one.score for one in judge(signals.evidence).findings}
        return found.get(name.removeprefix(FINDING), 0.0)
    if name == RESPONSE_TIME:
        return _response_time(signals)
    return signals[PLAIN.get(name, name)]


def _response_time(signals: Signals) -> float:
    """Little's law holds whatever the statements are: those at work = their rate times the time of one."""
    busy, rate = signals[ACTIVE], signals["fact.statement_rate"]
    if not rate:
        return math.inf if busy else 0.0
    return busy / rate


def known() -> Iterator[tuple[str, tuple[str, ...]]]:
    """All that rules may use: what kind of name it is, and those of that kind."""
    classes = tuple(default_classifier().catalog.classes)
    yield "by name", (*PLAIN, RESPONSE_TIME)
    yield FINDING + "NAME", tuple(rule.name for rule in default_rules())
    yield " ".join(f"{kind}.CLASS" for kind in sorted(OF_CLASSES)), classes
    yield (
        " ".join(f"{kind}.METRIC" for kind in sorted(OF_METRICS)),
        tuple(metric.name for metric in default() if metric.kind != "info" and not metric.own),
    )
    yield "fact.NAME", tuple(FACTS)


def _require_known(text: str, name: str) -> None:
    there_are = _alternatives(name)
    if there_are is None:
        return
    head, wanted, names = there_are
    near = difflib.get_close_matches(wanted, names, 1)
    some = ", ".join(names[:_SOME]) + (", …" if names[_SOME:] else "")
    hint = f"did you mean {head}{near[0]}?" if near else f"there are {some}"
    raise BadTrigger(
        f"{text!r}: there is no {head}{wanted}", remedy=f"{hint}\nall names: innoscope watch --list"
    )


def _alternatives(name: str) -> tuple[str, str, list[str]] | None:
    """What the name begins with, how it goes on, and how it may; None for a name that is known."""
    kind, _, rest = name.partition(".")
    head, wanted, names = "", name, [*PLAIN, RESPONSE_TIME]
    if name.startswith(FINDING):
        head, wanted = FINDING, name.removeprefix(FINDING)
        names = [rule.name for rule in default_rules()]
    elif kind in OF_CLASSES:
        head, wanted, names = f"{kind}.", rest, [*default_classifier().catalog.classes]
    elif kind in OF_METRICS:
        head, wanted, names = f"{kind}.", rest.partition(".")[0], [metric.name for metric in default()]
    elif kind == "fact":
        head, wanted, names = "fact.", rest, [*FACTS]
    elif (kind == "host" and rest) or name == ACTIVE:
        return None
    return None if wanted in names else (head, wanted, names)


def names(evidence: Evidence) -> list[str]:
    """The names that are worth showing of a server: plain ones, classes that were met, its gauges."""
    met = sorted({wait for look in evidence.looks for _, wait in look.threads})
    gauges = sorted(
        {
            key
            for snapshot in evidence.snapshots
            for key, number in snapshot.values.items()
            if isinstance(number, int | float) and default()[key.partition(".")[0]].kind == "gauge"
        }
    )
    return [*PLAIN, RESPONSE_TIME, *(f"share.{wait}" for wait in met), *(f"last.{key}" for key in gauges)]


def current(name: str, evidence: Evidence) -> float | None:
    """A name's present value; None where it cannot be told."""
    try:
        return value(name, Signals(evidence))
    except Unknown:
        return None


def shown(number: float) -> str:
    """A number for a person; which unit it has, its name says."""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"
