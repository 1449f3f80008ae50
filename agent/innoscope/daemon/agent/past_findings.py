"""Diagnose a past time range from the samples of busy threads, which the agent keeps for an hour by default.

Metrics, SQL results and snapshots of single threads are kept for a shorter time. Rules that need them are
reported as not checked.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from innoscope.diagnose.evidence import Evidence, MissingSource, described
from innoscope.diagnose.rules import default_rules
from innoscope.diagnose.verdict import CannotTell, judge
from innoscope.metrics import registry
from innoscope.sampling.profile_history import CHUNK_S
from innoscope.sampling.snapshot_history import MAX_STACKS, ObservedStack, SnapshotSummary

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from innoscope.daemon.agent.session_hour import SessionStep
    from innoscope.diagnose.rules import FindingRule
    from innoscope.diagnose.verdict import Verdict
    from innoscope.target.model import Target

#: Kinds of signals that the samples provide (diagnose/signals.py). ``unexplained`` is not among them: a rule
#: that is not checked might explain the threads.
_COUNTED: Final = frozenset({"threads", "background", "applier", "active", "share", "growth"})
_NOT_KEPT: Final = MissingSource("past", "known only for the last minute")
_NO_OWNERS: Final = MissingSource("past", "lock owners are known only for the last minute")
_MORE: Final = "metrics, SQL results and individual threads"
#: Maximum number of steps to divide into their snapshots. Longer ranges use one mean snapshot per step.
_MAX_DIVIDED: Final = 30


def past(
    target: Target, steps: Sequence[SessionStep], functions: Mapping[int, tuple[str, ...]]
) -> tuple[Evidence, Verdict]:
    """Return the evidence from the steps, which must contain a snapshot, and the verdict.

    ``functions`` contains the functions of each stack, by ``stack_id``.
    """
    sources = {source for metric in registry.default() for source in metric.sources}
    evidence = Evidence(
        server=described(target),
        begun=steps[0].at,
        ended=steps[-1].at + CHUNK_S,
        snapshots=tuple(_summaries(steps)),
        seen=_stacks(steps, functions),
        missing={**dict.fromkeys((*sources, "host"), _NOT_KEPT), "sql": _NO_OWNERS},
    )
    rules = default_rules()
    usable = [rule for rule in rules if _is_usable(rule)]
    verdict = judge(evidence, usable)
    unchecked = [rule.name for rule in rules if rule not in usable]
    unchecked += [*verdict.not_applicable, *(name for one in verdict.cannot_tell for name in one.findings)]
    return evidence, replace(
        verdict,
        cannot_tell=(CannotTell(tuple(unchecked), _MORE, _NOT_KEPT.words, None),),
        not_applicable=(),
        checked=len(rules) - len(unchecked),
        rules=len(rules),
    )


def _is_usable(rule: FindingRule) -> bool:
    """Return whether thread counts alone can satisfy all conditions of the rule."""
    return all(
        any(one.signal.partition(".")[0] in _COUNTED for one in condition.alternatives)
        for condition in rule.when
    )


def _summaries(steps: Sequence[SessionStep]) -> Iterator[SnapshotSummary]:
    """Yield snapshots with the same mean thread counts as the samples of each step."""
    for step in steps:
        if not step.weight:
            continue
        count = step.snapshots if len(steps) <= _MAX_DIVIDED else 1
        threads: defaultdict[tuple[str, str], float] = defaultdict(float)
        for row, seconds in step.rows():
            threads[row.kind, row.wait] += seconds
        sums = {key: round(seconds / step.weight * count) for key, seconds in threads.items()}
        for number in range(count):
            counts = {key: (found + number) // count for key, found in sums.items()}
            yield SnapshotSummary(step.at + number * CHUNK_S / count, counts)


def _stacks(
    steps: Sequence[SessionStep], functions: Mapping[int, tuple[str, ...]]
) -> tuple[ObservedStack, ...]:
    weight = sum(step.weight for step in steps) or 1.0
    snapshots = sum(step.snapshots for step in steps)
    seconds: defaultdict[tuple[str, str, tuple[str, ...]], float] = defaultdict(float)
    for step in steps:
        for row, found in step.rows():
            if row.stack in functions:
                seconds[row.kind, row.wait, functions[row.stack]] += found
    ranked = sorted(seconds.items(), key=lambda one: -one[1])[:MAX_STACKS]
    return tuple(ObservedStack(*key, round(found / weight * snapshots)) for key, found in ranked)
