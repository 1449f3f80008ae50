"""Define the samples of busy threads, as the sensor sends them to the agent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from innoscope import _native

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_STACK_BYTES: Final = 8


class SharedValues(NamedTuple):
    """Values that many threads share: ``_native.HISTORY_TEXTS`` and the stack. None means unknown.

    ``stack`` contains the functions, innermost first.
    """

    kind: str | None  # threads.yaml
    user: str | None
    schema: str | None
    digest: str | None
    command: str | None
    wait: str | None
    object: str | None  # an index, a table, another metadata lock or a latch
    blocker_digest: str | None
    statement_trust: str | None
    stack_trust: str | None
    stack: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sampled:
    """The busy threads of one snapshot, as columns.

    ``at`` is the Unix time in microseconds. ``weight`` is the time that the snapshot represents, in seconds.
    ``shapes`` contains indexes into ``Batch.shapes``.
    """

    at: int
    weight: float
    tids: Sequence[int] = ()
    shapes: Sequence[int] = ()
    connections: Sequence[int | None] = ()
    blockers: Sequence[int | None] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """Snapshots of one server. ``digests`` maps ids to normalized text.

    ``bytes`` is an upper bound on the size in JSON; 0 if it is unknown. ``more`` is whether the buffer has
    later snapshots, which exceeded the limits of the request.
    """

    shapes: Sequence[SharedValues] = ()
    snapshots: Sequence[Sampled] = ()
    digests: Mapping[str, str] = field(default_factory=dict)
    bytes: int = field(default=0, compare=False)
    more: bool = field(default=False, compare=False)


def stack_id(functions: tuple[str, ...]) -> int:
    """Return the signed 64-bit hash that identifies a stack in the history."""
    raw = _native.blake2s("\n".join(functions).encode(), size=_STACK_BYTES)
    return int.from_bytes(raw, "big", signed=True)
