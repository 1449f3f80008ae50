"""Find the wait classes of client threads that no reported finding covers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from innoscope.diagnose.evidence import AT_REST

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from innoscope.diagnose.evidence import Evidence
    from innoscope.diagnose.rules import Rule

#: Wait classes of threads that are working, not blocked.
_WORKING: Final = frozenset({"on_cpu", "runnable", "spin"})
#: A wait class that is covered by a rule without a finding is still unexplained if it has at least this mean
#: number of threads and this share of the active threads.
_THREADS, _SHARE = 2.0, 0.3


def unexplained(evidence: Evidence, rules: Iterable[Rule], reported: Collection[Rule]) -> frozenset[str]:
    """Return the wait classes of blocked client threads that no rule in ``reported`` covers.

    Omit a wait class with few threads if one of the other ``rules`` covers it, because that rule found no
    problem.
    """
    counts = evidence.threads(clients=True)
    snapshots = max(len(evidence.snapshots), 1)
    active = evidence.active_clients()
    explained = {wait for rule in reported for wait in rule.covers}
    covered = {wait for rule in rules for wait in rule.covers}
    return frozenset(
        wait
        for wait, count in counts.items()
        if wait not in AT_REST | _WORKING | explained
        and (wait not in covered or (count >= _THREADS * snapshots and count >= _SHARE * active))
    )
