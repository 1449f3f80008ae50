"""Read ``probes/catalog/findings.yaml``: server problems and the conditions that indicate them."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Final, Literal

from innoscope.common.data import catalog_path
from innoscope.common.schema import Entry, NamedEntry, name_entries, read_yaml
from innoscope.diagnose.advice import Advice
from innoscope.diagnose.blockers import BLOCKERS
from innoscope.diagnose.details import DETAILS
from innoscope.diagnose.facts.registry import METRICS
from innoscope.diagnose.signals import OF_METRICS, is_signal
from innoscope.diagnose.units import UNITS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

#: Placeholder ``{signal:unit}`` or ``{signal:unit|singular|plural}`` in a message.
PLACE: Final = re.compile(
    r"\{(?P<signal>[a-z0-9_]+(?:\.[a-z0-9_./]+)*):(?P<unit>[a-z]+)"
    r"(?:\|(?P<singular>[^|{}]+)\|(?P<plural>[^|{}]+))?\}"
)


class RuleCondition(Entry, frozen=True):
    """A signal with bounds, or ``any``: several conditions, at least one of which must hold."""

    signal: str = ""
    at_least: int | float | None = None
    below: int | float | None = None
    any: tuple[RuleCondition, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError unless the signal and the bounds are valid."""
        bounded = self.at_least is not None or self.below is not None
        if self.any:
            if self.signal or bounded or [one for one in self.any if one.any]:
                raise ValueError("any must be a list of signals with bounds, without other keys")
            return
        _check_signal(self.signal)
        if not bounded:
            raise ValueError(f"{self.signal}: needs at_least or below")

    @property
    def alternatives(self) -> tuple[RuleCondition, ...]:
        """Return the alternative conditions. At least one of them must hold."""
        return self.any or (self,)


class Score(Entry, frozen=True):
    """A score that increases from ``base`` to ``most`` as the signal increases from 0 to ``full``."""

    base: int | float
    signal: str
    full: int | float
    most: int | float

    def __post_init__(self) -> None:
        """Raise ValueError unless the signal is valid."""
        _check_signal(self.signal)


class FindingRule(NamedEntry, frozen=True, kw_only=True):
    """The rule for one finding, which is reported if all conditions in ``when`` hold."""

    title: str
    when: tuple[RuleCondition, ...]
    score: int | float | Score
    why: str
    do: tuple[str | Advice, ...]
    evidence: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    series: tuple[str, ...] = ()
    details: str | None = None
    stacks: tuple[str, ...] = ()
    latches: tuple[str, ...] = ()
    blocker: str | None = None
    toggles: tuple[str, ...] = ()
    see: tuple[str, ...] = ()
    explains: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError unless the rule's blocker, details, metrics, signals and units exist."""
        if self.blocker is not None and self.blocker not in BLOCKERS:
            raise ValueError(f"unknown blocker: {self.blocker!r}")
        if self.details is not None and self.details not in DETAILS:
            raise ValueError(f"unknown details: {self.details!r}")
        for metric in self.series:
            if not is_signal(f"last.{metric}"):
                raise ValueError(f"unknown metric: {metric!r}")
        for text in self.texts:
            _check_text(text)

    @property
    def covers(self) -> frozenset[str]:
        """Return the wait classes of client threads that this finding is about."""
        named = (signal.partition(".") for signal in self.signals)
        return frozenset((*self.stacks, *(rest for kind, _, rest in named if kind in ("threads", "share"))))

    @property
    def signals(self) -> tuple[str, ...]:
        """Return the signals in ``when``."""
        return tuple(condition.signal for item in self.when for condition in item.alternatives)

    @property
    def texts(self) -> tuple[str, ...]:
        """Return all messages that may contain placeholders."""
        advice = (line.text if isinstance(line, Advice) else line for line in self.do)
        return (self.title, self.why, *advice, *self.evidence)


class FindingsFile(Entry, frozen=True):
    """The contents of findings.yaml."""

    version: Literal[1]
    findings: dict[str, FindingRule]

    def __post_init__(self) -> None:
        """Raise ValueError unless all names in ``explains`` refer to findings."""
        name_entries(self.findings)
        for name, rule in self.findings.items():
            for other in rule.explains:
                if other not in self.findings:
                    raise ValueError(f"findings.{name}: explains an unknown finding: {other!r}")


def _check_signal(signal: str) -> None:
    if not is_signal(signal):
        raise ValueError(f"unknown signal: {signal!r}")


def _check_text(text: str) -> None:
    for place in PLACE.finditer(text):
        _check_signal(place["signal"])
        if place["unit"] not in UNITS:
            raise ValueError(f"unknown unit: {place['unit']!r}")
    if "{" in PLACE.sub("", text):
        raise ValueError(f"malformed placeholder, expected {{signal:unit}}: {text!r}")


def fill(text: str, show: Callable[[str, str], str]) -> str:
    """Replace each placeholder with ``show(signal, unit)``, followed by its singular or plural words."""

    def filled(place: re.Match[str]) -> str:
        number = show(place["signal"], place["unit"])
        words = place["singular"] if number == "1" else place["plural"]
        return f"{number} {words}" if words else number

    return PLACE.sub(filled, text)


@cache
def default_rules() -> tuple[FindingRule, ...]:
    """Return the rules of the installed catalog."""
    return load()


def load(path: Path | None = None) -> tuple[FindingRule, ...]:
    """Return all rules, in the order of the file. Raise BadFile if it is invalid."""
    return tuple(read_yaml(path or catalog_path("findings.yaml"), FindingsFile).findings.values())


def metrics_read(rules: Iterable[FindingRule]) -> frozenset[str]:
    """Return the names of the metrics that ``rules`` need."""
    found = set(METRICS)
    for rule in rules:
        found.update(rule.series)
        for signal in _signals(rule):
            kind, _, rest = signal.partition(".")
            if kind in OF_METRICS:
                found.add(rest.partition(".")[0])
    return frozenset(found)


def _signals(rule: FindingRule) -> Iterator[str]:
    yield from rule.signals
    if isinstance(rule.score, Score):
        yield rule.score.signal
    for text in rule.texts:
        yield from (place["signal"] for place in PLACE.finditer(text))
