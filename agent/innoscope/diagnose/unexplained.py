"""Find the wait classes of client threads that no reported finding covers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from innoscope.diagnose.evidence import AT_REST

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from innoscope.diagnose.evidence import Evidence
    from innoscope.diagnose.rules import FindingRule

#: Wait classes of threads that are working, not blocked.
_WORKING: Final = frozenset({"on_cpu", "runnable", "spin"})
#: Minimum mean number of threads for a wait class to count as unexplained although a rule covers it.
_THREADS: Final = 2.0
#: Minimum share of the active threads in such a wait class.
_SHARE: Final = 0.3


def unexplained(
    evidence: Evidence, rules: Iterable[FindingRule], reported: Collection[FindingRule]
) -> frozenset[str]:
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
