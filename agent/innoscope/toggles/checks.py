"""Check the conditions for changing a server. Each check is a pure function with its own error message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from innoscope.toggles.model import ChangeRefused, ChangeStep, ToggleVerdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from innoscope.target.model import Target
    from innoscope.toggles.facts import Facts
    from innoscope.toggles.journal_format import JournalEntry
    from innoscope.toggles.model import Backend, Domain, ToggledVariable


@dataclass(frozen=True, slots=True)
class Change:
    """The parts of a plan that the checks need."""

    toggle: str
    domain: Domain
    value: str
    backend: Backend
    steps: tuple[ChangeStep, ...]


def server_verdicts(target: Target, facts: Facts, backend: str) -> tuple[ToggleVerdict, ...]:
    """Check the server and this process before a change or undo. Return the most important results first."""
    return (
        identity(target, facts),
        not_stopped(target, facts),
        not_traced(facts),
        serving(target, facts),
        rights(target, facts, backend),
        ptrace_policy(facts, backend),
        journal_writable(facts),
    )


def verdicts(
    target: Target, facts: Facts, change: Change, entries: Iterable[JournalEntry]
) -> tuple[ToggleVerdict, ...]:
    """Run all checks for a change, and return their results."""
    return (
        *server_verdicts(target, facts, change.backend.kind),
        catalog_knows(target),
        as_declared(change.backend, change.steps),
        plausible(change.backend, change.steps),
        in_range(change.domain, change.value),
        no_other_change(target, facts, change, entries),
    )


def refuse(verdicts: Iterable[ToggleVerdict]) -> None:
    """Raise ChangeRefused if a check failed; the error describes the first one that did."""
    for verdict in verdicts:
        if not verdict.ok:
            raise ChangeRefused(str(verdict.reason), remedy=verdict.remedy)


def identity(target: Target, facts: Facts) -> ToggleVerdict:
    """Check that the pid still belongs to the same process with the same executable."""
    if facts.start_time is None:
        return _no("identity", f"server {target.pid} has exited", "innoscope targets")
    if facts.start_time != target.start_time:
        return _no(
            "identity",
            f"pid {target.pid} is another process now: it started at tick {facts.start_time}, "
            f"the intended server at {target.start_time}",
            "innoscope targets, then plan again",
        )
    if facts.build_id != target.build_id:
        return _no(
            "identity",
            f"the executable of {target.pid} has build-id {facts.build_id}, not {target.build_id}",
            "innoscope targets, then plan again",
        )
    return _yes("identity")


def catalog_knows(target: Target) -> ToggleVerdict:
    """Check that the server's version is known, because the catalog's entries depend on it."""
    if target.version and target.version_from != "unknown":
        return _yes("catalog_knows")
    return _no(
        "catalog_knows",
        f"the version of server {target.pid} is unknown, so nothing is known about its variables",
        "innoscope doctor shows why; root can read it from the server's memory",
    )


def not_stopped(target: Target, facts: Facts) -> ToggleVerdict:
    """Check that no thread is stopped by a signal or a debugger."""
    if not facts.stopped:
        return _yes("not_stopped")
    return _no(
        "not_stopped",
        f"{facts.stopped} threads of server {target.pid} are stopped",
        f"innoscope unstick --pid {target.pid}",
    )


def not_traced(facts: Facts) -> ToggleVerdict:
    """Check that nothing traces the server: a debugger may change it or stop a thread at any point."""
    if facts.tracer is None:
        return _yes("not_traced")
    return _no(
        "not_traced",
        f"process {facts.tracer} ({facts.tracer_name}) traces the server",
        f"end it, or wait until it exits: ps -fp {facts.tracer}",
    )


def serving(target: Target, facts: Facts) -> ToggleVerdict:
    """Check that the server is not starting, recovering or stopping, because changes may be unsafe then."""
    if facts.listens:
        return _yes("serving")
    words = {
        None: "is starting, recovering from a crash, or shutting down",
        "recovering": "is recovering from a crash",
        "stopping": "is shutting down",
    }[facts.phase]
    return _no(
        "serving",
        f"server {target.pid} does not listen: it {words}",
        "wait until its error log says 'ready for connections'",
    )


def rights(target: Target, facts: Facts, backend: str) -> ToggleVerdict:
    """Check that this process may write to the server's memory, if the backend needs that."""
    if backend == "sql" or facts.memory_error is None or facts.ptrace_capable:
        return _yes("rights")
    return _no(
        "rights",
        f"cannot write to the memory of process {target.pid}: {facts.memory_error}",
        "run it as root, or with CAP_SYS_PTRACE: sudo innoscope …",
    )


def ptrace_policy(facts: Facts, backend: str) -> ToggleVerdict:
    """Check that no kernel policy overrides CAP_SYS_PTRACE and forbids writing to memory."""
    if backend == "sql" or facts.memory_error is None or not facts.ptrace_capable:
        return _yes("ptrace_policy")
    if facts.ptrace_scope == 3:
        return _no(
            "ptrace_policy",
            "kernel.yama.ptrace_scope is 3: no process can trace or write to another until the next boot",
            "remove it from /etc/sysctl.d and reboot, or use the SQL backend",
        )
    policy = "our own seccomp filter" if facts.seccomp else "a security module, or its user namespace,"
    return _no(
        "ptrace_policy",
        f"{policy} forbids writing to its memory ({facts.memory_error}), although we have CAP_SYS_PTRACE",
        "run it on the host itself, not in a container; dmesg and the audit log name the module",
    )


def journal_writable(facts: Facts) -> ToggleVerdict:
    """Check that the change and its result can be written to the journal."""
    if facts.journal_problem is None:
        return _yes("journal")
    return _no("journal", *facts.journal_problem)


def as_declared(backend: Backend, steps: Sequence[ChangeStep]) -> ToggleVerdict:
    """Check that the variables' sizes and types in this server match the catalog."""
    for setting, step in _pairs(backend, steps):
        for what, known, found in (("bytes", setting.size, step.size), ("type", setting.kind, step.type)):
            if step.address is not None and known is not None and found != known:
                return _no(
                    "as_declared",
                    f"{setting.name} has {what} {found} in this server, but {known} in the catalog",
                    "the catalog does not cover this build; use the SQL backend",
                )
    return _yes("as_declared")


def plausible(backend: Backend, steps: Sequence[ChangeStep]) -> ToggleVerdict:
    """Check that the current values are plausible. An implausible value indicates the wrong variable."""
    for setting, step in _pairs(backend, steps):
        if setting.plausible is None or step.old is None:
            continue
        low, high = setting.plausible
        if isinstance(step.old, str) or not low <= step.old <= high:
            return _no(
                "plausible",
                f"{setting.name} is {step.old}, expected {low:g} to {high:g}: another variable?",
                "the catalog does not cover this build; use the SQL backend",
            )
    return _yes("plausible")


def in_range(domain: Domain, value: str) -> ToggleVerdict:
    """Check that the value is one of the toggle's words, or a number in its range.

    For a toggle with numbers, other text passes this check, because ``catalog.raws`` rejects it.
    """
    if value.lower() in domain.words:
        return _yes("in_range")
    if domain.low is None and domain.high is None:
        return _no("in_range", f"{value!r} is not one of its values", f"one of: {', '.join(domain.words)}")
    try:
        number = float(value)
    except ValueError:
        return _yes("in_range")
    low = float("-inf") if domain.low is None else domain.low
    high = float("inf") if domain.high is None else domain.high
    if not low <= number <= high or (domain.whole and not number.is_integer()):
        kind = "a whole number" if domain.whole else "a number"
        unit = f" {domain.unit}" if domain.unit else ""
        return _no("in_range", f"{value} is out of range", f"{kind} from {low:g} to {high:g}{unit}")
    return _yes("in_range")


def no_other_change(
    target: Target, facts: Facts, change: Change, entries: Iterable[JournalEntry]
) -> ToggleVerdict:
    """Check that no change to the same toggle or setting is unfinished or scheduled for automatic undo."""
    settings = {step.setting for step in change.steps}
    life = (target.pid, target.start_time, facts.boot_id)
    for entry in entries:
        same_thing = entry.toggle == change.toggle or settings & {step.setting for step in entry.steps}
        if entry.server.life != life or not same_thing:
            continue
        description = f"{entry.toggle} {entry.value}, by {entry.who}"
        if entry.outcome == "intended" and not (entry.action and entry.undoes is None):
            what = "change" if entry.undoes is None else "undo"
            return _no(
                "no_other_change",
                f"the {what} {entry.id} ({description}) was begun but never completed",
                f"innoscope toggle undo {entry.undoes or entry.id}",
            )
        if entry.until is not None and entry.outcome == "done":
            return _no(
                "no_other_change",
                f"the change {entry.id} ({description}) will be undone automatically",
                f"innoscope toggle undo {entry.id}, then set it again",
            )
    return _yes("no_other_change")


def _pairs(backend: Backend, steps: Sequence[ChangeStep]) -> Iterable[tuple[ToggledVariable, ChangeStep]]:
    known = {assignment.setting.name: assignment.setting for assignment in backend.assignments}
    return ((known[step.setting], step) for step in steps if step.setting in known)


def _yes(check: str) -> ToggleVerdict:
    return ToggleVerdict(check, ok=True)


def _no(check: str, reason: str, remedy: str) -> ToggleVerdict:
    return ToggleVerdict(check, ok=False, reason=reason, remedy=remedy)
