"""Evidence and rules → what is wrong, the worst first, and what could not be told."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from innoscope.diagnose import latches
from innoscope.diagnose.blockers import BLOCKERS, Blocker
from innoscope.diagnose.rules import PLACE, Score, default_rules
from innoscope.diagnose.signals import Signals
from innoscope.diagnose.unavailable import Unknown
from innoscope.diagnose.units import UNITS

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable

    from innoscope.diagnose.evidence import Evidence
    from innoscope.diagnose.rules import Condition, Rule
    from innoscope.sampling.snapshot_history import ObservedStack

#: Stacks that are shown of a wait class, and files of all of a rule's.
_STACKS: Final = 2
_FILES: Final = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong. ``score`` is 0 to 100; ``follows_from`` names the finding that explains it."""

    name: str
    title: str
    score: float
    evidence: tuple[str, ...]
    blockers: tuple[Blocker, ...]
    stacks: tuple[ObservedStack, ...]
    why: str
    do: tuple[str, ...]
    toggles: tuple[str, ...]
    see: tuple[str, ...]
    follows_from: str | None = None


@dataclass(frozen=True, slots=True)
class CannotTell:
    """Findings that nothing can be said of, because one source told nothing."""

    findings: tuple[str, ...]
    source: str
    words: str
    remedy: str | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """All that is said. ``checked`` is how many rules could be answered."""

    findings: tuple[Finding, ...]
    cannot_tell: tuple[CannotTell, ...]
    checked: int
    rules: int


def judge(evidence: Evidence, rules: Iterable[Rule] | None = None) -> Verdict:
    """Apply the rules, those of the catalog by default. The same evidence gives the same verdict."""
    every = tuple(default_rules() if rules is None else rules)
    signals = Signals(evidence)
    found: list[tuple[Rule, Finding]] = []
    unknown: list[tuple[Rule, Unknown]] = []
    for rule in every:
        try:
            if _holds(rule, signals):
                found.append((rule, _finding(rule, signals)))
        except Unknown as error:
            unknown.append((rule, error))
    return Verdict(_ranked(found), _cannot_tell(unknown), len(every) - len(unknown), len(every))


def _holds(rule: Rule, signals: Signals) -> bool:
    """Whether all conditions hold. Unknown is raised only if what is known leaves it open."""
    open_: Unknown | None = None
    for condition in rule.when:
        try:
            if not _any_holds(condition.alternatives, signals):
                return False
        except Unknown as error:
            open_ = open_ or error
    if open_ is not None:
        raise open_
    return True


def _any_holds(alternatives: Iterable[Condition], signals: Signals) -> bool:
    open_: Unknown | None = None
    for condition in alternatives:
        try:
            if _within(condition, signals[condition.signal]):
                return True
        except Unknown as error:
            open_ = open_ or error
    if open_ is not None:
        raise open_
    return False


def _within(condition: Condition, value: float) -> bool:
    return (condition.at_least is None or value >= condition.at_least) and (
        condition.below is None or value < condition.below
    )


def _finding(rule: Rule, signals: Signals) -> Finding:
    evidence = signals.evidence
    lines = (
        *(_filled(text, signals) for text in rule.evidence),
        *(_labels(evidence, metric) for metric in rule.series),
        _files(evidence, rule.files),
    )
    return Finding(
        name=rule.name,
        title=_filled(rule.title, signals) or PLACE.sub("?", rule.title),
        score=_score(rule.score, signals),
        evidence=(*(line for line in lines if line is not None), *latches.wanted(evidence, rule.latches)),
        blockers=tuple(_blockers(rule, evidence)),
        stacks=tuple(stack for wait in rule.stacks for stack in _top(evidence, wait)),
        why=rule.why,
        do=tuple(_filled(text, signals) or PLACE.sub("?", text) for text in rule.do),
        toggles=rule.toggles,
        see=rule.see,
    )


def _filled(text: str, signals: Signals) -> str | None:
    """The text with its numbers; None where one of them is not known."""

    def number(match: re.Match[str]) -> str:
        return UNITS[match[2]](signals[match[1]])

    try:
        return PLACE.sub(number, text)
    except Unknown:
        return None


def _score(score: float | Score, signals: Signals) -> float:
    if not isinstance(score, Score):
        return score
    share = min(1.0, max(0.0, signals.get(score.signal) / score.full))
    return score.base + (score.most - score.base) * share


def _blockers(rule: Rule, evidence: Evidence) -> list[Blocker]:
    if rule.blocker is None:
        return []
    try:
        return BLOCKERS[rule.blocker](evidence)
    except Unknown as error:
        return [Blocker(f"not known: {error.words}")]


def _labels(evidence: Evidence, metric: str) -> str | None:
    """Which series of a metric there are, by the first of their labels; None for none."""
    labels = dict.fromkeys(label.partition(".")[0] for label in evidence.labels(metric))
    return ", ".join(labels) or None


def _files(evidence: Evidence, waits: tuple[str, ...]) -> str | None:
    """Which files threads in these wait classes were at, the most frequent first; None for none."""
    counts: Counter[str] = Counter()
    for one in evidence.files:
        if one.wait in waits:
            counts[one.path] += one.count
    if not counts:
        return None
    shown = (f"{path} {100 * count / counts.total():.0f} %" for path, count in counts.most_common(_FILES))
    return f"at the files {', '.join(shown)}"


def _top(evidence: Evidence, wait: str) -> list[ObservedStack]:
    """The most frequent stacks of a wait class."""
    found = [seen for seen in evidence.seen if seen.wait == wait]
    return sorted(found, key=lambda seen: -seen.count)[:_STACKS]


def _ranked(found: list[tuple[Rule, Finding]]) -> tuple[Finding, ...]:
    """By score; what another finding explains comes behind that one, and says so."""
    causes: dict[str, str] = {}
    by_score = sorted(found, key=lambda one: -one[1].score)
    present = {finding.name for _, finding in by_score}
    for rule, finding in by_score:
        for name in rule.explains:
            if name in present and causes.get(finding.name) != name:
                causes.setdefault(name, finding.name)
    first = [finding for _, finding in by_score if finding.name not in causes]
    rest = [_with_cause(finding, causes[finding.name]) for _, finding in by_score if finding.name in causes]
    return (*first, *rest)


def _with_cause(finding: Finding, cause: str) -> Finding:
    return replace(finding, follows_from=cause)


def _cannot_tell(unknown: list[tuple[Rule, Unknown]]) -> tuple[CannotTell, ...]:
    """By source and reason; numbers that this server does not have are no failure and are left out."""
    groups: dict[tuple[str, str, str | None], list[str]] = {}
    for rule, error in unknown:
        if error.missing is not None:
            key = (error.source, error.missing.words, error.missing.remedy)
            groups.setdefault(key, []).append(rule.name)
    return tuple(
        CannotTell(tuple(names), source, words, remedy) for (source, words, remedy), names in groups.items()
    )
