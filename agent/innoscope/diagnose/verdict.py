"""Apply the rules to the evidence, and sort the findings by score, the worst first."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from innoscope.diagnose import advice, latches
from innoscope.diagnose.blockers import BLOCKERS, Blocker
from innoscope.diagnose.details import DETAILS
from innoscope.diagnose.rules import Score, default_rules, fill
from innoscope.diagnose.signals import UNEXPLAINED, Signals, without_stacks
from innoscope.diagnose.unavailable import Unknown
from innoscope.diagnose.unexplained import unexplained
from innoscope.diagnose.units import UNITS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from innoscope.diagnose.evidence import Evidence
    from innoscope.diagnose.rules import FindingRule, RuleCondition
    from innoscope.sampling.snapshot_history import ObservedStack

#: Maximum number of stacks to show per wait class.
_STACKS: Final = 2
#: Maximum number of statements to show per rule.
_STATEMENTS: Final = 3
#: Maximum number of files to show per rule.
_FILES: Final = 3


class WaitingStatement(NamedTuple):
    """A statement without literals, its digest if known, and the number of threads executing it."""

    text: str
    digest: str | None
    threads: int


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem with a server. ``score`` is 0 to 100; ``follows_from`` names the finding that explains it.

    ``statements`` lists the statements of the threads in the finding's wait classes, most frequent first.
    """

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
    statements: tuple[WaitingStatement, ...] = ()


@dataclass(frozen=True, slots=True)
class CannotTell:
    """Findings that could not be checked because a source has no data."""

    findings: tuple[str, ...]
    source: str
    words: str
    remedy: str | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of applying all rules.

    - ``checked`` is the number of rules that could be evaluated.
    - ``cannot_tell`` names the rules that lack a source. ``not_applicable`` names the rules that need a value
      which this server does not have.
    - ``blind`` is true if no stacks were available, so that a stall may have gone unnoticed.
    """

    findings: tuple[Finding, ...]
    cannot_tell: tuple[CannotTell, ...]
    checked: int
    rules: int
    not_applicable: tuple[str, ...] = ()
    blind: bool = False

    @property
    def nothing_wrong(self) -> bool:
        """Return whether snapshots were available and no rule produced a finding."""
        return not self.findings and not self.blind


def judge(evidence: Evidence, rules: Iterable[FindingRule] | None = None) -> Verdict:
    """Apply the rules, by default the installed ones. The verdict depends only on rules and evidence."""
    every = tuple(default_rules() if rules is None else rules)
    last = [rule for rule in every if any(name.startswith(f"{UNEXPLAINED}.") for name in rule.signals)]
    signals = Signals(evidence)
    found, unknown = _apply([rule for rule in every if rule not in last], signals)
    rest = unexplained(evidence, every, [rule for rule, _ in found])
    more, also_unknown = _apply(last, Signals(evidence, rest))
    unknown += also_unknown
    return Verdict(
        _ranked(found + more),
        _cannot_tell(unknown),
        checked=len(every) - len(unknown),
        rules=len(every),
        not_applicable=tuple(rule.name for rule, error in unknown if error.missing is None),
        blind=not evidence.snapshots or without_stacks(evidence),
    )


def _apply(
    rules: Iterable[FindingRule], signals: Signals
) -> tuple[list[tuple[FindingRule, Finding]], list[tuple[FindingRule, Unknown]]]:
    """Return the findings with their rules, and each rule that could not be evaluated with the reason."""
    found: list[tuple[FindingRule, Finding]] = []
    unknown: list[tuple[FindingRule, Unknown]] = []
    for rule in rules:
        try:
            if _holds(rule, signals):
                found.append((rule, _finding(rule, signals)))
        except Unknown as error:
            unknown.append((rule, error))
    return found, unknown


def _holds(rule: FindingRule, signals: Signals) -> bool:
    """Return whether all conditions hold. Raise Unknown if this depends on a signal without a value."""
    undecided: Unknown | None = None
    for condition in rule.when:
        try:
            if not _any_holds(condition.alternatives, signals):
                return False
        except Unknown as error:
            undecided = undecided or error
    if undecided is not None:
        raise undecided
    return True


def _any_holds(alternatives: Iterable[RuleCondition], signals: Signals) -> bool:
    undecided: Unknown | None = None
    for condition in alternatives:
        try:
            if _within(condition, signals[condition.signal]):
                return True
        except Unknown as error:
            undecided = undecided or error
    if undecided is not None:
        raise undecided
    return False


def _within(condition: RuleCondition, value: float) -> bool:
    return (condition.at_least is None or value >= condition.at_least) and (
        condition.below is None or value < condition.below
    )


def _finding(rule: FindingRule, signals: Signals) -> Finding:
    evidence = signals.evidence
    lines = (
        *(_filled(text, signals) for text in rule.evidence),
        *(_labels(evidence, metric) for metric in rule.series),
        *_details(rule, evidence),
        _files(evidence, rule.files),
    )
    return Finding(
        name=rule.name,
        title=_filled(rule.title, signals) or _without_values(rule.title),
        score=_score(rule.score, signals),
        evidence=(*(line for line in lines if line is not None), *latches.wanted(evidence, rule.latches)),
        blockers=tuple(_blockers(rule, evidence)),
        stacks=tuple(stack for waits in _classes(rule, signals) for stack in _top(evidence, waits)),
        why=rule.why,
        do=tuple(
            _filled(text, signals) or _without_values(text) for text in advice.lines(rule.do, evidence.server)
        ),
        toggles=advice.supported(rule.toggles, evidence.server),
        see=rule.see,
        statements=_statements(evidence, _classes(rule, signals)),
    )


def _filled(text: str, signals: Signals) -> str | None:
    """Return the message with its placeholders filled in; None if one of the values is unknown."""
    try:
        return fill(text, lambda signal, unit: UNITS[unit](signals[signal]))
    except Unknown:
        return None


def _without_values(text: str) -> str:
    return fill(text, lambda *_: "?")


def _score(score: float | Score, signals: Signals) -> float:
    if not isinstance(score, Score):
        return score
    share = min(1.0, max(0.0, signals.get(score.signal) / score.full))
    return score.base + (score.most - score.base) * share


def _blockers(rule: FindingRule, evidence: Evidence) -> list[Blocker]:
    if rule.blocker is None:
        return []
    try:
        return BLOCKERS[rule.blocker](evidence)
    except Unknown as error:
        return [Blocker(f"unknown: {error.words}")]


def _details(rule: FindingRule, evidence: Evidence) -> list[str]:
    if rule.details is None:
        return []
    try:
        return DETAILS[rule.details](evidence)
    except Unknown:
        return []


def _labels(evidence: Evidence, metric: str) -> str | None:
    """Return the values of a metric's first label, separated by commas; None if there are none."""
    labels = dict.fromkeys(label.partition(".")[0] for label in evidence.labels(metric))
    return ", ".join(labels) or None


def _files(evidence: Evidence, waits: tuple[str, ...]) -> str | None:
    """Return the files most often used by threads in ``waits``; None if there are none."""
    counts: Counter[str] = Counter()
    for one in evidence.files:
        if one.wait in waits:
            counts[one.path] += one.count
    if not counts:
        return None
    shown = (f"{path} {100 * count / counts.total():.0f} %" for path, count in counts.most_common(_FILES))
    return f"files: {', '.join(shown)}"


def _classes(rule: FindingRule, signals: Signals) -> list[frozenset[str]]:
    """Return the sets of wait classes whose stacks the rule shows. Unexplained classes form one set."""
    return [signals.unexplained if wait == UNEXPLAINED else frozenset({wait}) for wait in rule.stacks]


def _top(evidence: Evidence, waits: frozenset[str]) -> list[ObservedStack]:
    """Return the most frequent stacks of threads in ``waits``."""
    found = [seen for seen in evidence.seen if seen.wait in waits]
    return sorted(found, key=lambda seen: -seen.count)[:_STACKS]


def _statements(evidence: Evidence, classes: list[frozenset[str]]) -> tuple[WaitingStatement, ...]:
    """Return the statements of the threads that were in these wait classes in the last snapshot."""
    waits = frozenset().union(*classes)
    tids = {tid for seen in evidence.seen if seen.wait in waits for tid in seen.tids}
    counts = Counter((one.text, one.digest) for one in evidence.statements if one.text and one.tid in tids)
    return tuple(WaitingStatement(*key, count) for key, count in counts.most_common(_STATEMENTS))


def _ranked(found: list[tuple[FindingRule, Finding]]) -> tuple[Finding, ...]:
    """Sort the findings by score. Findings that others explain come last and name their cause."""
    causes: dict[str, str] = {}
    by_score = sorted(found, key=lambda one: -one[1].score)
    present = {finding.name for _, finding in by_score}
    for rule, finding in by_score:
        for name in rule.explains:
            if name in present and causes.get(finding.name) != name:
                causes.setdefault(name, finding.name)
    first = [finding for _, finding in by_score if finding.name not in causes]
    rest = [
        replace(finding, follows_from=causes[finding.name])
        for _, finding in by_score
        if finding.name in causes
    ]
    return (*first, *rest)


def _cannot_tell(unknown: list[tuple[FindingRule, Unknown]]) -> tuple[CannotTell, ...]:
    """Group rules by missing source and reason.

    Omit rules that need a value that this server does not provide, because that is not a failure.
    """
    groups: dict[tuple[str, str, str | None], list[str]] = {}
    for rule, error in unknown:
        if error.missing is not None:
            key = (error.source, error.missing.words, error.missing.remedy)
            groups.setdefault(key, []).append(rule.name)
    return tuple(
        CannotTell(tuple(names), source, words, remedy) for (source, words, remedy), names in groups.items()
    )
