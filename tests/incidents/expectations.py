"""Check the results of an incident."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from incidents.lab import Incident, Outcome


def errors(incident: Incident, outcome: Outcome) -> Iterator[str]:
    """Yield a message for each deviation of the outcome from the incident's expected results."""
    found = outcome.stall.names
    if found[:1] != [incident.finding]:
        yield f"{incident.finding} is not the first finding: {found}, {outcome.stall.record}"
    if incident.consequences is not None:
        strange = [name for name in found[1:] if name not in incident.consequences]
        if strange:
            yield f"unexpected findings {strange}: {outcome.stall.record}"
    if incident.finding in outcome.twin.names:
        yield f"{incident.finding} is reported for the twin, too: {outcome.twin.record}"
    for name in incident.also:
        if name not in found:
            yield f"{name} is missing: {outcome.stall.record}"
        if name in outcome.twin.names:
            yield f"{name} is reported for the twin, too: {outcome.twin.record}"
    cure, effect = incident.cure, outcome.effect
    if cure is not None and (effect is None or effect.after < cure.factor * effect.before):
        yield f"the cure does not raise the rate by {cure.factor:g}: {effect}"
