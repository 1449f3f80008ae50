"""Undoing a change from the journal: on the same process only, and only what still is as it was set."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from innoscope.common.errors import BadFile, CannotWrite, InnoscopeError
from innoscope.target.discover import identify
from innoscope.target.proc import ProcFs
from innoscope.toggles import checks, expiry, lock, status_file
from innoscope.toggles.dependencies import Means
from innoscope.toggles.journal_format import Entry, fresh_id, inverse, printable
from innoscope.toggles.model import ChangeFailed, Refused, Step, same
from innoscope.toggles.paths import boot_id, lives
from innoscope.toggles.write import nothing, verify

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from innoscope.target.credentials import Account
    from innoscope.target.model import Target
    from innoscope.toggles.model import Raw, Writer

#: What ``fault`` is called with by ``undo``, in this order; N is the number of a step, from 0.
UNDO_FAULTS: Final = (
    "undo-begun", "undo-locked", "undo-checked", "undo-intended", "undo-writing-N", "undo-written-N",
    "undo-verified", "undo-concluded", "undo-published",
)  # fmt: skip


class Overtaken(Refused):
    """There is nothing left to undo, and never will be: changed by somebody else, or the server is gone."""


def undo(
    target: Target | None,
    which: str | None,
    *,
    account: Account,
    who: str,
    why: str | None = None,
    fault: Callable[[str], None] = nothing,
    means: Means | None = None,
) -> Entry:
    """Set back what a change set; the entry of that change afterwards (undone, or not written).

    ``which`` is an id or a toggle's name; by default the last change that may be in force, of ``target`` if
    it is given. A change that was begun and never ended is looked at: what is not there was not written, what
    is there is put back. Raises Refused (Overtaken where trying again is of no use) and ChangeFailed.
    """
    means = means or Means()
    entry = _choose(means.journal.entries(), target, which)
    _must_be_undoable(entry)
    target = _same_process(entry, target)
    fault("undo-begun")
    with lock.held(means.journal.folder, entry.server):
        fault("undo-locked")
        entries = means.journal.entries()
        entry = next(one for one in entries if one.id == entry.id)
        _must_be_undoable(entry)  # somebody may have been quicker
        checks.refuse(checks.server_verdicts(target, means.facts(target, means.journal), entry.way))
        fault("undo-checked")
        with closing(means.writer(entry.way, target, account)) as writer:
            _Undoing(entry, entries, writer, means, fault).run(who, why)
        fault("undo-concluded")
        (means.expiry or expiry).disarm(entry.id)
        (means.publish or status_file.publish)(means.journal)
        fault("undo-published")
    return means.journal.find(entry.id) or entry


@dataclass(frozen=True, slots=True)
class _Undoing:
    """One undo, under the lock."""

    entry: Entry
    entries: Sequence[Entry]
    writer: Writer
    means: Means
    fault: Callable[[str], None]

    def run(self, who: str, why: str | None) -> None:
        """Look at what is there, and do what is left to do."""
        steps = self._left()
        begun = self._begun()
        if not steps and begun is None and self.entry.outcome == "intended":
            self.means.journal.conclude(self.entry.id, "not written", "the tool ended before it wrote")
            return
        if begun is None:
            begun = Entry(
                id=fresh_id(self.entries), at=time.time(), who=printable(who), why=why,
                toggle=self.entry.toggle, value=self.entry.value, way=self.entry.way,
                server=self.entry.server, steps=steps, undoes=self.entry.id,
            )  # fmt: skip
            self.means.journal.intend(begun)
        self.fault("undo-intended")
        self._write(begun, steps)
        reason = None if steps else "what it had set was set back already"
        self._conclude(begun, "done", reason)

    def _left(self) -> tuple[Step, ...]:
        """The writes that are still to be done, the last step first. Raises Overtaken."""
        left = []
        for step in reversed(self.entry.steps):
            now = self.writer.read(step)
            if same(now, step.old):
                continue
            if not same(now, step.new):
                raise self._overtaken(step, now)
            left.append(inverse(step, now))
        return tuple(left)

    def _overtaken(self, step: Step, now: Raw) -> Overtaken:
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
                f"nobody did through innoscope: ask who may SET GLOBAL (the general or audit log has it), "
                f"and set it yourself if {step.old} is right"
            )
        return Overtaken(
            f"{step.setting} is {now} now, not {step.new} as the change {self.entry.id} left it: "
            "somebody changed it since, so it is left alone",
            remedy=remedy,
        )

    def _begun(self) -> Entry | None:
        """An undo of the same change that was begun and never ended."""
        return next(
            (one for one in self.entries if one.undoes == self.entry.id and one.outcome == "intended"), None
        )

    def _write(self, begun: Entry, steps: Sequence[Step]) -> None:
        """Write and verify. Raises ChangeFailed, and journals that."""
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

    def _conclude(self, begun: Entry, outcome: str, reason: str | None) -> None:
        """Journal the undo's result, and what became of a change that had none."""
        try:
            if self.entry.outcome == "intended" and outcome == "done":
                self.means.journal.conclude(self.entry.id, "done", "the tool ended before it could say so")
            self.means.journal.conclude(begun.id, outcome, reason)
        except (BadFile, CannotWrite) as error:
            if outcome == "done":
                raise ChangeFailed(
                    f"{self.entry.toggle} was set back, but the journal cannot say so: {error.what}",
                    remedy=f"{error.remedy}\nthen once more: innoscope toggle undo {self.entry.id}",
                ) from error


def _choose(entries: Sequence[Entry], target: Target | None, which: str | None) -> Entry:
    """The entry that is meant. Raises Refused."""
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
    what = "change" if which is None else f"change {which!r}"
    raise Refused(
        f"there is no {what} in force that could be undone" + ("" if target is None else " on this server"),
        remedy="innoscope toggle history; what was changed ends with the server's process",
    )


def _must_be_undoable(entry: Entry) -> None:
    """Raise Overtaken where nothing is to be undone."""
    said = f"the change {entry.id} ({entry.toggle} {entry.value})"
    if entry.undoes is not None:
        reason, remedy = f"{entry.id} is an undo itself", f"innoscope toggle set {entry.toggle} VALUE"
    elif entry.outcome == "undone":
        reason, remedy = f"{said} was undone by {entry.undone_by}", "innoscope toggle history"
    elif entry.action:
        reason, remedy = f"{said} was an action, which leaves nothing to set back", "innoscope toggle history"
    elif not entry.may_be_in_force:
        reason, remedy = f"{said} left nothing behind ({entry.outcome})", "innoscope toggle history"
    else:
        return
    raise Overtaken(reason, remedy=remedy)


def _same_process(entry: Entry, target: Target | None) -> Target:
    """The target, which must be the process that was changed. Raises Overtaken, Refused for another one."""
    server, boot = entry.server, boot_id()
    if not lives(*server.life):
        raise Overtaken(
            f"server {server.pid} that was changed has ended; what runs now was never changed by {entry.id}",
            remedy="nothing to do: such a change ends with the process",
        )
    if target is not None and (target.pid, target.start_time, boot) != server.life:
        raise Refused(
            f"the change {entry.id} was made in server {server.pid}, not in {target.pid}",
            remedy=f"innoscope toggle undo {entry.id} --pid {server.pid}",
        )
    if target is None:
        try:
            # A change by SQL was made in a server that a person had chosen, if it is a container's.
            target = replace(identify(ProcFs(), server.pid), chosen=entry.way == "sql")
        except (ProcessLookupError, PermissionError) as error:
            raise Refused(f"cannot look at server {server.pid}: {error}", remedy="run it as root") from error
    if target.build_id != server.build_id:
        raise Overtaken(
            f"server {server.pid} runs build-id {target.build_id}; {entry.id} was made in {server.build_id}",
            remedy="restart the server to have what its configuration says",
        )
    return target
