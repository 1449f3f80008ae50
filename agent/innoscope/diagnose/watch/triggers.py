"""Parse and evaluate triggers such as ``threads_running>50``. All functions are pure.

======================  ============================================================================
``share.row_lock>0.5``  most signals that findings use (see ``known``), over the last few seconds
``threads_running>50``  some metrics under the names that DBAs use (``PLAIN``)
``response_time>200ms`` mean duration of a statement (Little's law: active threads / statement rate)
``finding:NAME``        `innoscope diagnose` would report this finding for the last ten seconds
======================  ============================================================================

A number may have a unit: ``%``, ``us``, ``ms``, ``s``, ``K``, ``M``, ``G`` (powers of 1024).
"""

from __future__ import annotations

import difflib
import math
import operator
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from innoscope.common.errors import ExitCode, InnoscopeError
from innoscope.diagnose.facts.registry import FACTS
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
#: Signals, keyed by the names that DBAs use for them.
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
#: Seconds of evidence for a trigger on a signal, enough for two readings and two snapshots.
RECENT_S: Final = 2.5
#: Seconds of evidence for a trigger on a finding, equal to the default duration of `innoscope diagnose`.
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
#: Maximum number of names that an error message lists.
_SOME: Final = 12
_EXAMPLES: Final = "for example threads_running>50, share.row_lock>0.5, finding:flushing_storm"


class BadTrigger(InnoscopeError):
    """Raised if a trigger is malformed or has an unknown name."""

    exit_code = ExitCode.USAGE


@dataclass(frozen=True, slots=True)
class Trigger:
    """One trigger. ``text`` is the user's input; a trigger on a finding has no number to compare with."""

    text: str
    name: str
    compare: str = ""
    number: float = 0.0

    @property
    def finding(self) -> str | None:
        """Return the name of the finding, or None for a comparison."""
        return self.name.removeprefix(FINDING) if self.name.startswith(FINDING) else None

    @property
    def window_s(self) -> float:
        """Return the seconds of evidence that the trigger needs."""
        return FINDING_S if self.finding else RECENT_S

    def value(self, evidence: Evidence) -> float:
        """Return the current value: for a finding, its score, or 0 if the finding is not reported.

        Raise Unknown if the value is unavailable.
        """
        return value(self.name, Signals(evidence))

    def holds(self, now: float) -> bool:
        """Return whether the value satisfies the trigger's condition."""
        return now > 0 if self.finding else _OPERATORS[self.compare](now, self.number)


def parse(text: str) -> Trigger:
    """Parse a trigger. Raise BadTrigger, with suggestions in the remedy, if it is invalid."""
    if text.startswith(FINDING):
        _require_known(text, text.strip())
        return Trigger(text, text.strip())
    match = _RULE.fullmatch(text)
    if match is None:
        why = f"{text!r} is not a trigger: expected a name, one of > >= < <=, and a number"
        raise BadTrigger(why, remedy=_EXAMPLES)
    name, compare, digits, unit = match.groups()
    _require_known(text, name)
    if unit.lower() not in _UNITS:
        raise BadTrigger(f"{text!r}: unknown unit {unit!r}", remedy="one of % us ms s K M G, or none")
    try:
        number = float(digits) * _UNITS[unit.lower()]
    except ValueError:
        raise BadTrigger(f"{text!r}: {digits!r} is not a number", remedy=_EXAMPLES) from None
    return Trigger(text, name, compare, number)


def value(name: str, signals: Signals) -> float:
    """Return the value that a trigger's name stands for. Raise Unknown if it is unavailable."""
    if name.startswith(FINDING):
        found = {one.name: one.score for one in judge(signals.evidence).findings}
        return found.get(name.removeprefix(FINDING), 0.0)
    if name == RESPONSE_TIME:
        return _response_time(signals)
    return signals[PLAIN.get(name, name)]


def _response_time(signals: Signals) -> float:
    """Return the mean duration of a statement by Little's law: active threads = rate x duration."""
    busy, rate = signals[ACTIVE], signals["fact.statement_rate"]
    if not rate:
        return math.inf if busy else 0.0
    return busy / rate


def known() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the kinds of names that triggers may use, with the names of each kind."""
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
    alternatives = _alternatives(name)
    if alternatives is None:
        return
    head, wanted, names = alternatives
    near = difflib.get_close_matches(wanted, names, 1)
    some = ", ".join(names[:_SOME]) + (", …" if names[_SOME:] else "")
    hint = f"did you mean {head}{near[0]}?" if near else f"known names: {some}"
    raise BadTrigger(
        f"{text!r}: unknown name {head}{wanted}", remedy=f"{hint}\nall names: innoscope watch --list"
    )


def _alternatives(name: str) -> tuple[str, str, list[str]] | None:
    """Return an unknown name's prefix, its suffix, and the valid suffixes; None if the name is known."""
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
    """Return the names to list for a server: plain names, and the wait classes and gauges observed."""
    classes = sorted({wait for snapshot in evidence.snapshots for _, wait in snapshot.threads})
    gauges = sorted(
        {
            key
            for reading in evidence.readings
            for key, number in reading.values.items()
            if isinstance(number, int | float) and default()[key.partition(".")[0]].kind == "gauge"
        }
    )
    return [*PLAIN, RESPONSE_TIME, *(f"share.{wait}" for wait in classes), *(f"last.{key}" for key in gauges)]


def current(name: str, evidence: Evidence) -> float | None:
    """Return the current value of a trigger's name, or None if it is unavailable."""
    try:
        return value(name, Signals(evidence))
    except Unknown:
        return None


def shown(number: float) -> str:
    """Format a trigger's value for display, without its unit, which the trigger's name implies."""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"
