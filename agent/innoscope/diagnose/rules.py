"""Reading and checking ``probes/catalog/findings.yaml``: what can be wrong, and how that is known."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from innoscope.common.data import catalog_path, read_yaml, reading
from innoscope.common.errors import BadFile
from innoscope.diagnose import facts
from innoscope.diagnose.blockers import BLOCKERS
from innoscope.diagnose.signals import OF_METRICS, is_signal
from innoscope.diagnose.units import UNITS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

#: ``{signal:unit}`` in a text.
PLACE: Final = re.compile(r"\{([a-z0-9_]+(?:\.[a-z0-9_./]+)*):([a-z]+)\}")
_LISTS: Final = ("do", "evidence", "files", "series", "stacks", "latches", "toggles", "see", "explains")
_KEYS: Final = frozenset({*_LISTS, "title", "when", "score", "blocker", "why"})
_NEEDED: Final = ("title", "when", "score", "why", "do")
_BOUNDS: Final = frozenset({"at_least", "below"})


@dataclass(frozen=True, slots=True)
class Condition:
    """One signal within bounds."""

    signal: str
    at_least: float | None
    below: float | None


@dataclass(frozen=True, slots=True)
class Score:
    """From ``base`` to ``most`` as the signal goes from 0 to ``full``; without a signal it is ``base``."""

    base: float
    signal: str | None = None
    full: float = 1.0
    most: float = 0.0


@dataclass(frozen=True, slots=True)
class Rule:
    """One finding. ``when``: of each inner tuple one condition must hold."""

    name: str
    title: str
    when: tuple[tuple[Condition, ...], ...]
    score: Score
    why: str
    do: tuple[str, ...]
    evidence: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    series: tuple[str, ...] = ()
    stacks: tuple[str, ...] = ()
    latches: tuple[str, ...] = ()
    blocker: str | None = None
    toggles: tuple[str, ...] = ()
    see: tuple[str, ...] = ()
    explains: tuple[str, ...] = ()


@cache
def default_rules() -> tuple[Rule, ...]:
    """Those of the installed catalog."""
    return load()


def load(path: Path | None = None) -> tuple[Rule, ...]:
    """All rules in the order of the file. Raises BadFile, which names the first problem."""
    path = path or catalog_path("findings.yaml")
    data = read_yaml(path)
    with reading(path):
        if found := list(problems(data)):
            raise BadFile(f"{path}: {found[0]}" + (f" (and {len(found) - 1} more)" if found[1:] else ""))
        return tuple(_rule(name, body) for name, body in data["findings"].items())


def metrics_read(rules: Iterable[Rule]) -> frozenset[str]:
    """The metrics of which these rules ask for the numbers."""
    found = set(facts.METRICS)
    for rule in rules:
        found.update(rule.series)
        for signal in _signals(rule):
            kind, _, rest = signal.partition(".")
            if kind in OF_METRICS:
                found.add(rest.partition(".")[0])
    return frozenset(found)


def _signals(rule: Rule) -> Iterator[str]:
    yield from (condition.signal for item in rule.when for condition in item)
    if rule.score.signal is not None:
        yield rule.score.signal
    for text in (rule.title, rule.why, *rule.do, *rule.evidence):
        yield from (signal for signal, _ in PLACE.findall(text))


def _rule(name: str, body: Mapping[str, Any]) -> Rule:
    lists = {key: tuple(body.get(key, ())) for key in _LISTS}
    score = body["score"]
    return Rule(
        name=name,
        title=body["title"],
        when=tuple(tuple(map(_condition, _alternatives(item))) for item in body["when"]),
        score=Score(score) if isinstance(score, int) else Score(**score),
        why=body["why"].strip(),
        blocker=body.get("blocker"),
        **lists,
    )


def _alternatives(item: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    alternatives: list[Mapping[str, Any]] = item.get("any", [item])
    return alternatives


def _condition(body: Mapping[str, Any]) -> Condition:
    return Condition(body["signal"], body.get("at_least"), body.get("below"))


def problems(data: Any) -> Iterator[str]:
    """What is wrong with a parsed findings.yaml, in words."""
    if not isinstance(data, dict) or data.get("version") != 1 or not isinstance(data.get("findings"), dict):
        yield "wants version: 1 and findings, a mapping"
        return
    names = data["findings"].keys()
    for name, body in data["findings"].items():
        if not isinstance(body, dict) or not all(key in body for key in _NEEDED):
            yield f"{name}: wants {', '.join(_NEEDED)}"
            continue
        yield from (f"{name}: {text}" for text in _rule_problems(body))
        for other in body.get("explains", ()):
            if other not in names:
                yield f"{name}: explains {other!r}, which is no finding"


def _rule_problems(body: Mapping[str, Any]) -> Iterator[str]:
    for key in body.keys() - _KEYS:
        yield f"unknown key {key!r}"
    for item in body["when"]:
        for condition in _alternatives(item):
            yield from _condition_problems(condition)
    score = body["score"]
    if isinstance(score, dict) and not is_signal(score.get("signal", "")):
        yield f"score: no such signal: {score.get('signal')!r}"
    if (blocker := body.get("blocker")) is not None and blocker not in BLOCKERS:
        yield f"no such blocker: {blocker!r}"
    for metric in body.get("series", ()):
        if not is_signal(f"last.{metric}"):
            yield f"no such metric: {metric!r}"
    for text in (body["title"], body["why"], *body["do"], *body.get("evidence", ())):
        yield from _text_problems(text)


def _condition_problems(condition: Mapping[str, Any]) -> Iterator[str]:
    if not is_signal(condition.get("signal", "")):
        yield f"no such signal: {condition.get('signal')!r}"
    if not _BOUNDS & condition.keys() or condition.keys() - _BOUNDS - {"signal"}:
        yield f"{condition.get('signal')}: wants at_least or below, and no more"


def _text_problems(text: str) -> Iterator[str]:
    for signal, unit in PLACE.findall(text):
        if not is_signal(signal):
            yield f"no such signal: {signal!r}"
        if unit not in UNITS:
            yield f"no such unit: {unit!r}"
    if "{" in PLACE.sub("", text):
        yield f"a place that is not {{signal:unit}}: {text!r}"
