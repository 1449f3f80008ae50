"""Format a verdict as text and as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from innoscope.common.console import Color, Colored
from innoscope.diagnose import advice
from innoscope.diagnose.evidence import AT_REST, with_digest
from innoscope.diagnose.signals import without_stacks
from innoscope.sampling.classify import server_functions
from innoscope.sampling.snapshot_history import CLIENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innoscope.diagnose.blockers import Blocker
    from innoscope.diagnose.evidence import Evidence
    from innoscope.diagnose.verdict import Finding, Verdict
    from innoscope.memory.locks.held import HeldLock
    from innoscope.sampling.snapshot_history import ObservedStack

#: Maximum number of functions to show per stack, unless all are requested.
_FUNCTIONS: Final = 7
#: Minimum score of an urgent finding.
_URGENT: Final = 75
#: A finding with a lower score is only a remark.
_REMARK: Final = 40
VERSION: Final = 1


def text(evidence: Evidence, verdict: Verdict, *, full: bool = False) -> Iterator[str]:
    """Yield the report's lines: a summary, the findings (worst first), and what could not be checked.

    If ``full`` is false, stacks begin at the server's own innermost function and are truncated.
    """
    yield from _head(evidence)
    if not verdict.findings:
        yield _without_findings(verdict)
    for number, finding in enumerate(verdict.findings, 1):
        yield ""
        yield from _finding(number, finding, full=full)
    if verdict.cannot_tell:
        yield ""
        yield "Not checked, because data is missing:"
        for one in verdict.cannot_tell:
            names = ", ".join(name.replace("_", " ") for name in one.findings)
            yield f"  {names}: no {one.source.replace('_', ' ')}: {one.words}"
            if one.remedy:
                yield f"    {one.remedy}"
    if verdict.not_applicable:
        names = ", ".join(name.replace("_", " ") for name in verdict.not_applicable)
        yield f"Not checked, because this server does not have the data: {names}"


def _without_findings(verdict: Verdict) -> str:
    checks = f"{verdict.checked} of {verdict.rules} checks made"
    if verdict.nothing_wrong:
        return Colored(f"Nothing wrong was found: {checks}.", Color.GREEN)
    return Colored(
        f"No snapshot of the threads was taken, so a stall may have been missed: {checks}.", Color.YELLOW
    )


def _head(evidence: Evidence) -> Iterator[str]:
    server = evidence.server
    flavour = {"mysql": "MySQL", "mariadb": "MariaDB"}.get(server["flavour"], server["flavour"])
    blind = without_stacks(evidence)
    observed = "the process list, no stacks" if blind else f"{len(evidence.snapshots)} snapshots"
    about = f"pid {server['pid']} · {evidence.seconds:.0f} s, {observed}"
    yield f"{flavour} {server['version']} · {about} · not stopped"
    if evidence.snapshots:
        counts = evidence.threads(clients=True)
        snapshots = len(evidence.snapshots)
        active = evidence.active_clients() / snapshots
        by_wait = ", ".join(
            f"{count / snapshots:.1f} {wait.replace('_', ' ')}"
            for wait, count in counts.most_common(6)
            if wait not in AT_REST
        )
        yield f"{sum(counts.values()) / snapshots:,.0f} client threads, {active:,.1f} busy" + (
            f": {by_wait}" if by_wait else ""
        )


def _finding(number: int, finding: Finding, *, full: bool) -> Iterator[str]:
    yield _title(number, finding)
    if finding.follows_from:
        yield f"   follows from {finding.follows_from.replace('_', ' ')}"
        return
    for line in finding.evidence:
        yield f"   {line}"
    yield from _stacks(finding, full=full)
    for one in finding.statements:
        threads = f"{one.threads:,} thread{'s' if one.threads != 1 else ''}"
        yield f"   statement of {threads}: {with_digest(one.text, one.digest)}"
    yield f"   why: {' '.join(finding.why.split())}"
    for line in finding.do:
        yield f"   do:  {line}"
    for name in finding.toggles:
        toggle = advice.toggles()[name]
        yield f"   toggle: innoscope toggle show {name}  ({toggle.title}; {toggle.risk})"
    if finding.see:
        yield f"   see: {'; '.join(finding.see)}"


def _stacks(finding: Finding, *, full: bool) -> Iterator[str]:
    """Yield the blockers and the stacks. Stacks that look the same are merged."""
    for blocker in finding.blockers:
        yield f"   blocker: {blocker.words}"
        if blocker.stack:
            yield f"     {_shown(blocker.stack, full=full)}"
    stacks: Counter[str] = Counter()
    for seen in finding.stacks:
        stacks[_shown(seen.functions, seen.wait, full=full)] += seen.count
    for stack, count in stacks.items():
        yield f"   {count:>6} × {stack}"


def _title(number: int, finding: Finding) -> str:
    """Return the first line of a finding: red if it is urgent, uncolored if it is a remark, else yellow."""
    rest = f"{finding.title}  [{finding.name}, {finding.score:.0f}]"
    if finding.score >= _URGENT:
        return Colored(f"{number}.! {rest}", Color.RED)
    if finding.score < _REMARK:
        return f"{number}.· {rest}"
    return Colored(f"{number}.  {rest}", Color.YELLOW)


def _shown(functions: tuple[str, ...], wait: str = "", *, full: bool) -> str:
    if full:
        return ",".join(functions)
    own = server_functions(functions, wait)
    return ",".join(own[:_FUNCTIONS]) + (",…" if len(own) > _FUNCTIONS else "")


def record(evidence: Evidence, verdict: Verdict) -> dict[str, Any]:
    """Return the verdict as a JSON value (docs/json.md)."""
    return {
        "version": VERSION,
        "server": dict(evidence.server),
        "begun": evidence.begun,
        "seconds": round(evidence.seconds, 3),
        "looks": 0 if without_stacks(evidence) else len(evidence.snapshots),
        "client_threads": _means(evidence),
        "findings": [_as_json(finding) for finding in verdict.findings],
        "owners": [_held(held) for held in evidence.owners],
        "cannot_tell": [asdict(one) for one in verdict.cannot_tell],
        "not_applicable": list(verdict.not_applicable),
        "nothing_wrong": verdict.nothing_wrong,
        "checked": verdict.checked,
        "rules": verdict.rules,
    }


def _means(evidence: Evidence) -> dict[str, float]:
    """Return the mean number of client threads by wait class, over all snapshots."""
    counts = evidence.threads(clients=True)
    return {wait: round(count / len(evidence.snapshots), 2) for wait, count in counts.most_common()}


def _as_json(finding: Finding) -> dict[str, Any]:
    found = asdict(finding)
    found["score"] = round(finding.score, 1)
    found["stacks"] = [_stack(seen) for seen in finding.stacks]
    found["statements"] = [one._asdict() for one in finding.statements]
    found["blockers"] = [_blocker(blocker) for blocker in finding.blockers]
    return found


def _stack(seen: ObservedStack) -> dict[str, Any]:
    return {
        "wait": seen.wait,
        "client": seen.kind == CLIENT,
        "count": seen.count,
        "functions": list(seen.functions),
    }


def _held(held: HeldLock) -> dict[str, Any]:
    """Return a lock and its owner as a JSON value."""
    found = asdict(held)
    found["looks"] = found.pop("snapshots")
    return {**found, "waiters": list(held.waiters), "stack": list(held.stack)}


def _blocker(blocker: Blocker) -> dict[str, Any]:
    found = asdict(blocker)
    return {"words": found.pop("words"), "functions": list(found.pop("stack")), **found}
