"""What the journal tells of a change: its interface only; the journal takes the place of this."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from innoscope.toggles.model import Step


@dataclass(frozen=True, slots=True)
class ServerId:
    """Which process was changed."""

    pid: int
    start_time: int
    boot_id: str
    build_id: str | None
    flavour: str
    version: tuple[int, ...]
    socket: str | None


@dataclass(frozen=True, slots=True)
class Entry:
    """One change, or one undo of a change (``undoes``). Times are Unix seconds."""

    id: str
    at: float
    who: str
    why: str | None
    toggle: str
    value: str
    way: str
    server: ServerId
    steps: tuple[Step, ...]
    until: float | None = None
    undoes: str | None = None
    outcome: str = "intended"
    ended_at: float | None = None
    reason: str | None = None
    put_back: bool = False
    undone_by: str | None = None
    notes: tuple[str, ...] = ()
