"""Changing a server: planned, checked, journalled, written, verified; and put back if that goes wrong."""

from __future__ import annotations

import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Final

from innoscope.common.errors import BadFile, CannotWrite, InnoscopeError
from innoscope.target.credentials import Account
from innoscope.toggles import checks, expiry, lock, status_file
from innoscope.toggles.current_values import values
from innoscope.toggles.dependencies import Means
from innoscope.toggles.journal_format import Entry, ServerId, fresh_id, printable
from innoscope.toggles.model import ChangeFailed, Refused, same
from innoscope.toggles.paths import boot_id
from innoscope.toggles.plan import plan
from innoscope.toggles.undo import undo
from innoscope.toggles.write import nothing, put_back, verify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from innoscope.target.model import Target
    from innoscope.toggles.model import Plan, Step, Writer

__all__ = ["FAULTS", "apply", "history", "plan", "undo", "values"]

#: What ``fault`` is called with by ``apply``, in this order; N is the number of a step, from 0.
FAULTS: Final = (
    "begun", "locked", "checked", "armed", "intended", "reread", "writing-N", "written-N", "verified",
    "concluded", "published",
)  # fmt: skip


def apply(
    target: Target,
    plan: Plan,
    *,
    who: str,
    why: str | None = None,
    seconds: float | None = None,
    fault: Callable[[str], None] = nothing,
    account: Account | None = None,
    means: Means | None = None,
) -> Entry:
    """Do what the plan says; with ``seconds``, have it undone by itself after them.

    Raises Refused when nothing was written, ChangeFailed when something was and went wrong. ``fault`` is
    called at every step's boundary (FAULTS); killed at any of them, the journal tells the truth and ``undo``
    works.
    """
    means, account = means or Means(), account or Account()
    checks.refuse(plan.verdicts)
    fault("begun")
    server = ServerId.of(target, boot_id())
    with lock.held(means.journal.folder, server):
        fault("locked")
        change = checks.Change(plan.toggle.name, plan.toggle.domain, plan.value, plan.way, plan.steps)
        facts, entries = means.facts(target, means.journal), means.journal.entries_if_readable()
        checks.refuse(checks.verdicts(target, facts, change, entries))
        fault("checked")
        now = time.time()
        entry = Entry(
            id=fresh_id(entries), at=now, who=printable(who), why=why, toggle=plan.toggle.name,
            value=plan.value, way=plan.way.kind, server=server, steps=plan.steps,
            until=None if seconds is None else now + seconds,
        )  # fmt: skip
        with closing(means.writer(entry.way, target, account)) as writer, _armed(entry, account, means):
            fault("armed")
            means.journal.intend(entry)
            fault("intended")
            _do(writer, entry, means, fault)
        fault("concluded")
        _publish(means)
        fault("published")
    return means.journal.find(entry.id) or entry


def history(target: Target | None = None, *, means: Means | None = None) -> list[Entry]:
    """All changes and undos, the oldest first; of one server's process if it is given. Raises BadFile."""
    entries = (means or Means()).journal.entries()
    if target is None:
        return list(entries)
    life = (target.pid, target.start_time, boot_id())
    return [entry for entry in entries if entry.server.life == life]


def _do(writer: Writer, entry: Entry, means: Means, fault: Callable[[str], None]) -> None:
    """From the intent to the result, which is journalled whatever happens."""
    attempted: list[Step] = []
    try:
        _reread(writer, entry)
        fault("reread")
        for number, step in enumerate(entry.steps):
            fault(f"writing-{number}")
            attempted.append(step)
            writer.write(step)
            fault(f"written-{number}")
        verify(writer, entry.steps)
        fault("verified")
    except BaseException as error:  # an interrupt too: the server must not be left half changed
        _failed(writer, entry, attempted, error, means)
        raise
    try:
        means.journal.conclude(entry.id, "done")
    except (BadFile, CannotWrite) as error:
        raise ChangeFailed(
            f"{entry.toggle} was set and verified, but the journal cannot say so: {error.what}",
            remedy=f"{error.remedy}\ninnoscope toggle undo {entry.id}   sets it back",
        ) from error


def _reread(writer: Writer, entry: Entry) -> None:
    """What is there must still be what the plan saw. Raises Refused."""
    for step in entry.steps:
        now = writer.read(step)
        if not same(now, step.old):
            raise Refused(
                f"{step.setting} was {step.old} when this was planned and is {now} now: somebody changed it",
                remedy=f"innoscope toggle plan {entry.toggle} {entry.value}",
            )


def _failed(writer: Writer, entry: Entry, attempted: list[Step], error: BaseException, means: Means) -> None:
    """Put back what was written, and journal it. Raises ChangeFailed unless nothing had been written."""
    what = error.what if isinstance(error, InnoscopeError) else f"{type(error).__name__}: {error}"
    if not attempted or (isinstance(error, Refused) and len(attempted) == 1):
        _say(means, entry, "not written", what)
        return
    left = put_back(writer, attempted)
    _say(means, entry, "failed", "; ".join((what, *left)), not left)
    if left:
        raise ChangeFailed(
            f"{entry.toggle} could not be set ({what}), nor all put back: {'; '.join(left)}",
            remedy=f"innoscope toggle undo {entry.id}",
        ) from error
    if isinstance(error, Exception):
        raise ChangeFailed(
            f"{entry.toggle} could not be set: {what}; all is as it was before",
            remedy=getattr(error, "remedy", None),
        ) from error


def _say(means: Means, entry: Entry, outcome: str, reason: str, back: bool = False) -> None:
    """Journal a failure. Where even that fails the entry stays "intended", and undo looks for itself."""
    try:
        means.journal.conclude(entry.id, outcome, reason, put_back=back)
    except (BadFile, CannotWrite):
        return
    _publish(means)


@contextmanager
def _armed(entry: Entry, account: Account, means: Means) -> Iterator[None]:
    """Have the undo wait for its time while the change is made, and for nothing if it was not."""
    if entry.until is None:
        yield
        return
    arming = means.expiry or expiry
    arming.arm(entry, account, means.journal.folder)
    try:
        yield
    except BaseException:
        if not _may_be_in_force(entry, means):
            arming.disarm(entry.id)
        raise


def _may_be_in_force(entry: Entry, means: Means) -> bool:
    try:
        found = means.journal.find(entry.id)
    except BadFile:
        return True
    return found is not None and found.may_be_in_force


def _publish(means: Means) -> None:
    (means.publish or status_file.publish)(means.journal)
