"""Define the samples of busy threads, as the sensor sends them to the agent."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2s
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_STACK_BYTES: Final = 8


class Shape(NamedTuple):
    """Values that many threads share: those of ``_native.HISTORY_TEXTS``, and the stack. None means unknown.

    ``stack`` contains the functions, innermost first.
    """

    kind: str | None  # threads.yaml
    user: str | None
    schema: str | None
    digest: str | None
    command: str | None
    wait: str | None
    object: str | None  # a latch, table or index
    blocker_digest: str | None
    statement_trust: str | None
    stack_trust: str | None
    stack: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sampled:
    """The busy threads of one snapshot, as columns. ``weight`` is the seconds that the snapshot represents.

    ``at`` is the Unix time in microseconds. ``shapes`` contains indexes of ``Batch.shapes``.
    """

    at: int
    weight: float
    tids: Sequence[int] = ()
    shapes: Sequence[int] = ()
    connections: Sequence[int | None] = ()
    blockers: Sequence[int | None] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """Snapshots of one server. ``digests`` maps ids to normalized texts."""

    shapes: Sequence[Shape] = ()
    snapshots: Sequence[Sampled] = ()
    digests: Mapping[str, str] = field(default_factory=dict)


def stack_id(functions: tuple[str, ...]) -> int:
    """Return the signed 64-bit hash that identifies a stack in the history."""
    raw = blake2s("\n".join(functions).encode(), digest_size=_STACK_BYTES).digest()
    return int.from_bytes(raw, "big", signed=True)
