"""Undo a change in the journal if the server process is the same and the value has not changed since."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from innoscope.common.errors import BadFile, CannotWrite, InnoscopeError
from innoscope.target.discover import identify
from innoscope.target.proc import ProcFs
from innoscope.toggles import checks, expiry, lock, status_file
from innoscope.toggles.dependencies import Dependencies
from innoscope.toggles.guarded_write import nothing, verify
from innoscope.toggles.journal_format import JournalEntry, fresh_id, inverse, printable
from innoscope.toggles.model import ChangeFailed, ChangeRefused, ChangeStep, same
from innoscope.toggles.paths import boot_id, lives

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from innoscope.target.credentials import LoginOptions
    from innoscope.target.model import Target
    from innoscope.toggles.model import Raw, Writer

#: The values that ``undo`` passes to ``fault``, in this order. N is a step's index, from 0.
UNDO_FAULTS: Final = (
    "undo-begun", "undo-locked", "undo-checked", "undo-intended", "undo-writing-N", "undo-written-N",
    "undo-verified", "undo-concluded", "undo-published",
)  # fmt: skip


class Overtaken(ChangeRefused):
    """The change can never be undone: for example, the value was changed again, or the server has exited."""


def undo(
    target: Target | None,
    which: str | None,
    *,
    account: LoginOptions,
    who: str,
    why: str | None = None,
    fault: Callable[[str], None] = nothing,
    deps: Dependencies | None = None,
) -> JournalEntry:
    """Undo a change, and return the change's updated journal entry (undone, or not written).

    ``which`` is the id of a change or the name of a toggle. By default, the last change that may be in force
    is undone, or the last such change of ``target`` if given. If the change is unfinished, the current values
    show which steps were written, and only those are undone.

    Raise ChangeRefused if the change cannot be undone at present, Overtaken if it never can, or ChangeFailed
    if a write fails.
    """
    deps = deps or Dependencies()
    entry = _choose(deps.journal.entries(), target, which)
    _must_be_undoable(entry)
    target = _same_process(entry, target)
    fault("undo-begun")
    with lock.held(deps.journal.folder, entry.server):
        fault("undo-locked")
        entries = deps.journal.entries()
        entry = next(one for one in entries if one.id == entry.id)
        _must_be_undoable(entry)  # again, because another process may have undone it in the meantime
        checks.refuse(checks.server_verdicts(target, deps.facts(target, deps.journal), entry.backend))
        fault("undo-checked")
        with closing(deps.writer(entry.backend, target, account)) as writer:
            _Undoing(entry, entries, writer, deps, fault).run(who, why)
        fault("undo-concluded")
        (deps.expiry or expiry).disarm(entry.id)
        (deps.publish or status_file.publish)(deps.journal)
        fault("undo-published")
    return deps.journal.find(entry.id) or entry


@dataclass(frozen=True, slots=True)
class _Undoing:
    """One undo. The caller holds the server's lock."""

    entry: JournalEntry
    entries: Sequence[JournalEntry]
    writer: Writer
    deps: Dependencies
    fault: Callable[[str], None]

    def run(self, who: str, why: str | None) -> None:
        """Restore the old values that have not been restored yet, and journal the undo."""
        steps = self._left()
        begun = self._begun()
        if not steps and begun is None and self.entry.outcome == "intended":
            self.deps.journal.conclude(self.entry.id, "not written", "the tool ended before writing")
            return
        if begun is None:
            begun = JournalEntry(
                id=fresh_id(self.entries), at=time.time(), who=printable(who), why=why,
                toggle=self.entry.toggle, value=self.entry.value, backend=self.entry.backend,
                server=self.entry.server, steps=steps, undoes=self.entry.id,
            )  # fmt: skip
            self.deps.journal.intend(begun)
        self.fault("undo-intended")
        self._write(begun, steps)
        reason = None if steps else "everything it had set was already restored"
        self._conclude(begun, "done", reason)

    def _left(self) -> tuple[ChangeStep, ...]:
        """Return the steps left to undo, last one first. Raise Overtaken if a value has changed since."""
        left = []
        for step in reversed(self.entry.steps):
            now = self.writer.read(step)
            if same(now, step.old):
                continue
            if not same(now, step.new):
                raise self._overtaken(step, now)
            left.append(inverse(step, now))
        return tuple(left)

    def _overtaken(self, step: ChangeStep, now: Raw) -> Overtaken:
        settings = {one.setting for one in self.entry.steps}
        later = [
            one
            for one in self.entries[self.entries.index(self.entry) + 1 :]
            if one.server.life == self.entry.server.life
            and one.may_be_in_force
            and settings & {theirs.setting for theirs in one.steps}
        ]
        if later:
            remedy = f"undo the later change {later[-1].id} of {later[-1].who} first"
        else:
            remedy = (
                "not changed through innoscope: look for SET GLOBAL in the general or audit log, "
                f"and set it yourself if {step.old} is right"
            )
        return Overtaken(
            f"cannot undo change {self.entry.id} of {step.setting}: "
            f"it has since changed from {step.new} to {now}",
            remedy=remedy,
        )

    def _begun(self) -> JournalEntry | None:
        """Return an unfinished undo of the same change, or None."""
        return next(
            (one for one in self.entries if one.undoes == self.entry.id and one.outcome == "intended"), None
        )

    def _write(self, begun: JournalEntry, steps: Sequence[ChangeStep]) -> None:
        """Write and verify the steps. If this fails, journal the failure and raise ChangeFailed."""
        try:
            for number, step in enumerate(steps):
                self.fault(f"undo-writing-{number}")
                self.writer.write(step)
                self.fault(f"undo-written-{number}")
            verify(self.writer, steps)
            self.fault("undo-verified")
        except Exception as error:
            what = error.what if isinstance(error, InnoscopeError) else f"{type(error).__name__}: {error}"
            self._conclude(begun, "failed", what)
            raise ChangeFailed(
                f"the change {self.entry.id} ({self.entry.toggle}) could not be undone: {what}",
                remedy=getattr(error, "remedy", None) or f"innoscope toggle undo {self.entry.id}",
            ) from error

    def _conclude(self, begun: JournalEntry, outcome: str, reason: str | None) -> None:
        """Journal the result of the undo, and of the change too if it is unfinished."""
        try:
            if self.entry.outcome == "intended" and outcome == "done":
                self.deps.journal.conclude(self.entry.id, "done", "the tool ended before it was recorded")
            self.deps.journal.conclude(begun.id, outcome, reason)
        except (BadFile, CannotWrite) as error:
            if outcome == "done":
                raise ChangeFailed(
                    f"{self.entry.toggle} was restored, but this could not be recorded in the journal: "
                    f"{error.what}",
                    remedy=f"{error.remedy}\nthen run again: innoscope toggle undo {self.entry.id}",
                ) from error


def _choose(entries: Sequence[JournalEntry], target: Target | None, which: str | None) -> JournalEntry:
    """Return the entry to undo. Raise ChangeRefused if there is none."""
    by_id = next((entry for entry in entries if entry.id == which), None)
    if by_id is not None:
        return by_id
    boot = boot_id()
    for entry in reversed(entries):
        if which is not None and entry.toggle != which:
            continue
        here = target is None or entry.server.life == (target.pid, target.start_time, boot)
        if here and entry.may_be_in_force and lives(*entry.server.life):
            return entry
    what = "a change" if which is None else f"a change of {which!r}"
    raise ChangeRefused(
        f"cannot undo {what}: none is in force" + ("" if target is None else " on this server"),
        remedy="innoscope toggle history; changes are lost when the server exits",
    )


def _must_be_undoable(entry: JournalEntry) -> None:
    """Raise Overtaken if there is nothing to undo."""
    description = f"the change {entry.id} ({entry.toggle} {entry.value})"
    if entry.undoes is not None:
        reason, remedy = f"{entry.id} is itself an undo", f"innoscope toggle set {entry.toggle} VALUE"
    elif entry.outcome == "undone":
        reason, remedy = f"{description} was undone by {entry.undone_by}", "innoscope toggle history"
    elif entry.action:
        reason = f"{description} was an action, so there is nothing to undo"
        remedy = "innoscope toggle history"
    elif not entry.may_be_in_force:
        reason, remedy = f"{description} changed nothing ({entry.outcome})", "innoscope toggle history"
    else:
        return
    raise Overtaken(reason, remedy=remedy)


def _same_process(entry: JournalEntry, target: Target | None) -> Target:
    """Return the changed server as a target.

    Raise Overtaken if the process has exited or runs a different executable, or ChangeRefused if ``target``
    is another process or the server cannot be identified.
    """
    server, boot = entry.server, boot_id()
    if not lives(*server.life):
        raise Overtaken(
            f"the changed server, pid {server.pid}, has exited; {entry.id} changed no other process",
            remedy="nothing to do: the change was lost when the process exited",
        )
    if target is not None and (target.pid, target.start_time, boot) != server.life:
        raise ChangeRefused(
            f"the change {entry.id} was made in server {server.pid}, not in {target.pid}",
            remedy=f"innoscope toggle undo {entry.id} --pid {server.pid}",
        )
    if target is None:
        try:
            # A change over SQL implies that the user had chosen this server (required for containers).
            target = replace(identify(ProcFs(), server.pid), chosen=entry.backend == "sql")
        except (ProcessLookupError, PermissionError) as error:
            raise ChangeRefused(
                f"cannot identify server {server.pid}: {error}", remedy="run it as root"
            ) from error
    if target.build_id != server.build_id:
        raise Overtaken(
            f"server {server.pid} runs build-id {target.build_id}; {entry.id} was made in {server.build_id}",
            remedy="restart the server to restore its configured values",
        )
    return target
