"""Apply a plan: check and journal it, write and verify the values, and restore old values on failure."""

from __future__ import annotations

import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Final

from innoscope.common.errors import BadFile, CannotWrite, InnoscopeError
from innoscope.target.credentials import LoginOptions
from innoscope.toggles import checks, expiry, lock, status_file
from innoscope.toggles.current_values import values
from innoscope.toggles.dependencies import Dependencies
from innoscope.toggles.guarded_write import nothing, put_back, verify
from innoscope.toggles.journal_format import JournalEntry, ServerId, fresh_id, printable
from innoscope.toggles.model import ChangeFailed, ChangeRefused, same
from innoscope.toggles.paths import boot_id
from innoscope.toggles.plan import plan
from innoscope.toggles.undo import undo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from innoscope.target.model import Target
    from innoscope.toggles.model import ChangePlan, ChangeStep, Writer

__all__ = ["FAULTS", "apply", "history", "plan", "undo", "values"]

#: The values that ``apply`` passes to ``fault``, in this order. N is a step's index, from 0.
FAULTS: Final = (
    "begun", "locked", "checked", "armed", "intended", "reread", "writing-N", "written-N", "verified",
    "concluded", "published",
)  # fmt: skip


def apply(
    target: Target,
    plan: ChangePlan,
    *,
    who: str,
    why: str | None = None,
    seconds: float | None = None,
    fault: Callable[[str], None] = nothing,
    account: LoginOptions | None = None,
    deps: Dependencies | None = None,
) -> JournalEntry:
    """Apply the plan, and return the journal entry. ``seconds`` is the time until the automatic undo.

    Raise ChangeRefused if nothing was written, and ChangeFailed if the change failed after a write. ``fault``
    is called at each point listed in FAULTS. If this process is killed at any of these points, the journal
    stays correct and ``undo`` works.
    """
    deps, account = deps or Dependencies(), account or LoginOptions()
    checks.refuse(plan.verdicts)
    fault("begun")
    server = ServerId.of(target, boot_id())
    with lock.held(deps.journal.folder, server):
        fault("locked")
        change = checks.Change(plan.toggle.name, plan.toggle.domain, plan.value, plan.backend, plan.steps)
        facts, entries = deps.facts(target, deps.journal), deps.journal.entries_if_readable()
        checks.refuse(checks.verdicts(target, facts, change, entries))
        fault("checked")
        now = time.time()
        entry = JournalEntry(
            id=fresh_id(entries), at=now, who=printable(who), why=why, toggle=plan.toggle.name,
            value=plan.value, backend=plan.backend.kind, server=server, steps=plan.steps,
            until=None if seconds is None else now + seconds,
        )  # fmt: skip
        with closing(deps.writer(entry.backend, target, account)) as writer, _armed(entry, account, deps):
            fault("armed")
            deps.journal.intend(entry)
            fault("intended")
            _do(writer, entry, deps, fault)
        fault("concluded")
        _publish(deps)
        fault("published")
    return deps.journal.find(entry.id) or entry


def history(target: Target | None = None, *, deps: Dependencies | None = None) -> list[JournalEntry]:
    """Return all changes and undos, or only those of one server process, oldest first.

    Raise BadFile if the journal cannot be read, is damaged or is not trusted.
    """
    entries = (deps or Dependencies()).journal.entries()
    if target is None:
        return list(entries)
    life = (target.pid, target.start_time, boot_id())
    return [entry for entry in entries if entry.server.life == life]


def _do(writer: Writer, entry: JournalEntry, deps: Dependencies, fault: Callable[[str], None]) -> None:
    """Make the change, and journal its result even if it fails."""
    attempted: list[ChangeStep] = []
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
    except BaseException as error:  # also on Ctrl-C: never leave a partial change
        _failed(writer, entry, attempted, error, deps)
        raise
    try:
        deps.journal.conclude(entry.id, "done")
    except (BadFile, CannotWrite) as error:
        raise ChangeFailed(
            f"{entry.toggle} was set and verified, but this could not be recorded in the journal: "
            f"{error.what}",
            remedy=f"{error.remedy}\ninnoscope toggle undo {entry.id}   restores it",
        ) from error


def _reread(writer: Writer, entry: JournalEntry) -> None:
    """Raise ChangeRefused if a current value differs from the old value in the plan."""
    for step in entry.steps:
        now = writer.read(step)
        if not same(now, step.old):
            raise ChangeRefused(
                f"cannot change {step.setting}: it is {now} now, not {step.old} as planned",
                remedy=f"innoscope toggle plan {entry.toggle} {entry.value}",
            )


def _failed(
    writer: Writer, entry: JournalEntry, attempted: list[ChangeStep], error: BaseException, deps: Dependencies
) -> None:
    """Restore the old values of the attempted steps, and journal the failure.

    Raise ChangeFailed if a value could not be restored, or if something may have been written and ``error``
    is not an interrupt.
    """
    what = error.what if isinstance(error, InnoscopeError) else f"{type(error).__name__}: {error}"
    if not attempted or (isinstance(error, ChangeRefused) and len(attempted) == 1):
        _journal_failure(deps, entry, "not written", what)
        return
    left = put_back(writer, attempted)
    _journal_failure(deps, entry, "failed", "; ".join((what, *left)), not left)
    if left:
        raise ChangeFailed(
            f"{entry.toggle} could not be set ({what}), and not everything was restored: {'; '.join(left)}",
            remedy=f"innoscope toggle undo {entry.id}",
        ) from error
    if isinstance(error, Exception):
        raise ChangeFailed(
            f"{entry.toggle} could not be set: {what}; the old values were restored",
            remedy=getattr(error, "remedy", None),
        ) from error


def _journal_failure(
    deps: Dependencies, entry: JournalEntry, outcome: str, reason: str, back: bool = False
) -> None:
    """Journal a failure. If that fails, the entry stays "intended", and undo checks the current values."""
    try:
        deps.journal.conclude(entry.id, outcome, reason, put_back=back)
    except (BadFile, CannotWrite):
        return
    _publish(deps)


@contextmanager
def _armed(entry: JournalEntry, account: LoginOptions, deps: Dependencies) -> Iterator[None]:
    """Schedule the automatic undo before the change. Cancel it if the change fails and has no effect."""
    if entry.until is None:
        yield
        return
    arming = deps.expiry or expiry
    arming.arm(entry, account, deps.journal.folder)
    try:
        yield
    except BaseException:
        if not _may_be_in_force(entry, deps):
            arming.disarm(entry.id)
        raise


def _may_be_in_force(entry: JournalEntry, deps: Dependencies) -> bool:
    try:
        found = deps.journal.find(entry.id)
    except BadFile:
        return True
    return found is not None and found.may_be_in_force


def _publish(deps: Dependencies) -> None:
    (deps.publish or status_file.publish)(deps.journal)
