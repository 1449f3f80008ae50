"""Whether the right thing was said of an incident."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from incidents.lab import Incident, Outcome


def wrong(incident: Incident, outcome: Outcome) -> list[str]:
    """What is wrong with it, in words; nothing when all is right."""
    return list(_wrong(incident, outcome))


def _wrong(incident: Incident, outcome: Outcome) -> Iterator[str]:
    found = outcome.stall.names
    if found[:1] != [incident.finding]:
        yield f"{incident.finding} is not the first finding: {found}, {outcome.stall.record}"
    if incident.consequences is not None:
        strange = [name for name in found[1:] if name not in incident.consequences]
        if strange:
            yield f"nobody expects {strange}: {outcome.stall.record}"
    if incident.finding in outcome.twin.names:
        yield f"{incident.finding} is said of the twin too: {outcome.twin.record}"
    cure, effect = incident.cure, outcome.effect
    if cure is not None and (effect is None or effect.after < cure.factor * effect.before):
        yield f"the cure does not bring {cure.factor:g} times as much: {effect}"
