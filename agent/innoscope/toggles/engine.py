"""Changing a server: its interface only; the engine takes the place of this."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from innoscope.doctor.server import Account
    from innoscope.target.model import Target
    from innoscope.toggles.entries import Entry
    from innoscope.toggles.model import Plan


def plan(
    target: Target, toggle_name: str, value: str, *, account: Account, ways: Sequence[str] | None = None
) -> Plan:
    """What setting the toggle would do, and what the checks say of it; nothing is written."""
    raise NotImplementedError


def apply(
    target: Target,
    plan: Plan,
    *,
    who: str,
    why: str | None = None,
    seconds: float | None = None,
    account: Account | None = None,
) -> Entry:
    """Do what the plan says; with ``seconds``, have it undone by itself after them."""
    raise NotImplementedError


def undo(
    target: Target | None, which: str | None, *, account: Account, who: str, why: str | None = None
) -> Entry:
    """Set back what a change set; the entry of that change afterwards."""
    raise NotImplementedError


def history(target: Target | None = None) -> list[Entry]:
    """All changes and undos, the oldest first; of one server's process if it is given."""
    raise NotImplementedError


def current(target: Target, toggle: str, account: Account) -> str | None:
    """The toggle's value now, as a person says it; None for an action, or where no way can tell it."""
    raise NotImplementedError
