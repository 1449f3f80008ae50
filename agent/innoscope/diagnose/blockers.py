"""Find the owners of locks that other threads are waiting for: from memory, over SQL, or from stacks.

Stacks do not name an owner, but they can be compared: most waiters share the functions that request the lock.
A thread that is inside one of these functions but is not waiting is probably the owner.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from innoscope.diagnose import blocking_chains, replica_applier
from innoscope.diagnose.answers import number, rows
from innoscope.diagnose.blocking_chains import Blocker as Blocker
from innoscope.diagnose.facts import cluster, cpu
from innoscope.diagnose.facts.transactions import oldest_view
from innoscope.diagnose.sql_queries import default_queries
from innoscope.sampling.lock_sections import innermost_of, protected_functions
from innoscope.target.version import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from innoscope.diagnose.evidence import ConnectionActivity, Evidence
    from innoscope.sampling.snapshot_history import ObservedStack

#: Wait classes of threads that are not considered as owners, because they are at rest or waiting for a lock
#: themselves.
_NOT_INSIDE: Final = frozenset(
    {"idle", "background_idle", "user_sleep", "mutex_wait", "spin", "opening_tables"}
)


def row_lock(evidence: Evidence) -> list[Blocker]:
    """Return the known owners of row locks, or else the oldest transactions that hold row locks."""
    if known := blocking_chains.blockers(evidence, "row_lock"):
        transactions = evidence.answers.get("transactions", ())
        return [_with_transaction(blocker, transactions) for blocker in known]
    transactions = rows(evidence, "transactions")
    waiting = [row for row in transactions if row["state"] == "LOCK WAIT"]
    holding = [row for row in transactions if row["state"] == "RUNNING" and number(row, "rows_locked") > 0]
    if not waiting:
        return []
    oldest = max(number(row, "seconds") for row in waiting)
    older = [row for row in holding if number(row, "seconds") >= oldest] or holding
    older.sort(key=lambda row: -number(row, "seconds"))
    return [_transaction(row, evidence) for row in older[:3]]


def _with_transaction(blocker: Blocker, transactions: tuple[Mapping[str, str], ...]) -> Blocker:
    row = next((one for one in transactions if one["connection"] == str(blocker.connection)), None)
    if row is None:
        return blocker
    seconds, rows = number(row, "seconds"), number(row, "rows_locked")
    words = (
        f"{blocker.words}; its transaction has been open for {seconds:,.0f} s, with {rows:,.0f} rows locked"
    )
    return replace(blocker, words=words)


def _transaction(row: Mapping[str, str], evidence: Evidence) -> Blocker:
    seconds, rows = number(row, "seconds"), f"{number(row, 'rows_locked'):,.0f} rows locked"
    if seconds < 1:
        return Blocker(
            f"several in turn; when queried, {_who(row, evidence)}: {rows}", _stack_of(row, evidence)
        )
    open_for = f"its transaction has been open for {seconds:,.0f} s"
    return Blocker(f"{_who(row, evidence)}: {open_for}, with {rows}", _stack_of(row, evidence))


def metadata_lock(evidence: Evidence) -> list[Blocker]:
    """Return the holders of metadata locks that others are waiting for, or else the oldest transactions."""
    if known := blocking_chains.blockers(evidence, "metadata_lock"):
        return known
    return _open_transactions(evidence)


def oldest_transaction(evidence: Evidence) -> list[Blocker]:
    """Return the transaction that may have the oldest read view; empty if there is none."""
    oldest = oldest_view(evidence)
    return [] if oldest is None else [_transaction(oldest[1], evidence)]


def runner(evidence: Evidence) -> list[Blocker]:
    """Return the client thread that was on a CPU in more snapshots than any other; empty if there is none."""
    tid, _ = cpu.longest_runner(evidence)
    if tid is None:
        return []
    statement_ = next((one for one in evidence.statements if one.tid == tid), None)
    words = f"thread {tid}"
    if statement_ is not None:
        words += f", connection {statement_.connection}{_account(statement_)}"
        words += f", for {statement_.seconds:,} s: {statement_.named}"
    return [Blocker(words, next((seen.functions for seen in evidence.seen if tid in seen.tids), ()))]


def _open_transactions(evidence: Evidence) -> list[Blocker]:
    """Return the oldest open transactions, which may hold metadata locks that the server does not list."""
    transactions = sorted(rows(evidence, "transactions"), key=lambda row: -number(row, "seconds"))
    return [
        Blocker(
            f"perhaps {_who(row, evidence)}: its transaction has been open for"
            f" {number(row, 'seconds'):,.0f} s ({_no_holders(evidence)})",
            _stack_of(row, evidence),
        )
        for row in transactions[:2]
    ] or [Blocker(f"unknown: {_no_holders(evidence)}")]


def _no_holders(evidence: Evidence) -> str:
    """Return the reason why the server does not list the holders of metadata locks."""
    missing = evidence.missing.get("sql.metadata_locks")
    if missing is not None:
        return f"performance_schema.metadata_locks: {missing.words}"
    if "metadata_locks" not in evidence.answers:
        return "this server does not show who holds metadata locks"
    if not evidence.answers["metadata_locks"]:
        return f"the server records no metadata locks; to see their holders: {_enabling(evidence)}"
    return "the server does not list the holder: it acquired the lock before the server began to record locks"


def _enabling(evidence: Evidence) -> str:
    """Return the setting that makes this server record metadata locks from the time it is enabled."""
    server = evidence.server
    query = default_queries()["metadata_locks"].for_server(server["flavour"], parse(server["version"]))
    return query.enable if query else "not possible on this server"


def _who(row: Mapping[str, str], evidence: Evidence) -> str:
    """Return a description such as ``connection 42, app@web1, idle in its transaction for 31 s``.

    If the connection is not idle, the description ends with its state and statement.
    """
    statement_ = statement(evidence, row["connection"])
    if statement_ is None:
        return f"connection {row['connection']}"
    doing = (
        f"idle in its transaction for {statement_.seconds:,} s"
        if statement_.command == "Sleep"
        else f"{statement_.state or statement_.command}: {statement_.named or 'no statement'}"
    )
    return f"connection {statement_.connection}{_account(statement_)}, {doing}"


def _account(statement_: ConnectionActivity) -> str:
    """Return ", user@host", without the host if there is none.

    Return "" for a statement read from memory, where user and host are unknown.
    """
    host = f"@{statement_.host}" if statement_.host else ""
    return f", {statement_.user}{host}" if statement_.user else ""


def statement(evidence: Evidence, connection: str) -> ConnectionActivity | None:
    """Return the activity of the connection with this id, or None."""
    return next((one for one in evidence.statements if str(one.connection) == str(connection)), None)


def _stack_of(row: Mapping[str, str], evidence: Evidence) -> tuple[str, ...]:
    statement_ = statement(evidence, row["connection"])
    if statement_ is None or statement_.tid is None:
        return ()
    return next((seen.functions for seen in evidence.seen if statement_.tid in seen.tids), ())


def latch(*waits: str) -> Callable[[Evidence], list[Blocker]]:
    """Return a function that finds the owners of the latches that threads in ``waits`` are waiting for."""

    def find(evidence: Evidence) -> list[Blocker]:
        if known := blocking_chains.blockers(evidence, *waits):
            return known
        waiting = [seen for seen in evidence.seen if seen.wait in waits]
        if not waiting:
            return []
        section = protected_functions(waiting)
        inside = [
            (seen, function)
            for seen in evidence.seen
            if seen.wait not in _NOT_INSIDE
            and seen.wait not in waits
            and (function := innermost_of(seen.functions, section)) is not None
        ]
        inside.sort(key=lambda found: -found[0].count)
        return [
            _inside(seen, function, sum(one.count for one in waiting), evidence)
            for seen, function in inside[:2]
        ]

    return find


def _inside(seen: ObservedStack, function: str, waited: int, evidence: Evidence) -> Blocker:
    """Return a Blocker for one or more threads inside the critical section.

    ``waited`` is the number of waiters summed over all snapshots.
    """
    tid = seen.tids[0] if len(seen.tids) == 1 else None
    statement_ = next((one for one in evidence.statements if tid is not None and one.tid == tid), None)
    who = f"thread {tid}" if tid else f"{len(seen.tids):,} threads" if seen.tids else "a thread"
    words = f"inside {function} ({seen.wait.replace('_', ' ')})"
    if statement_ is None:
        return Blocker(f"{who} {words}", seen.functions, thread=tid)
    waiting = round(waited / max(len(evidence.snapshots), 1))
    waiters = blocking_chains.waiting(waiting)
    runs = f", runs: {statement_.named}" if statement_.text else ""
    line = f"connection {statement_.connection} ({who}){_account(statement_)} {words}{runs}; {waiters}"
    return Blocker(
        line,
        seen.functions,
        thread=tid,
        connection=statement_.connection,
        waiting=waiting,
        digest=statement_.digest,
    )


def applier(evidence: Evidence) -> list[Blocker]:
    """Return a replica's appliers and their statements, then the owners of the locks they are waiting for."""
    found = [Blocker(words) for words in replica_applier.running(evidence)]
    if replica_applier.waits_for_rows(evidence):
        found += row_lock(evidence)
    if replica_applier.waits_for_table(evidence):
        found += metadata_lock(evidence)
    return found


def busiest(activity: str, words: str) -> Callable[[Evidence], list[Blocker]]:
    """Return a function that finds the thread that was in ``activity`` in the most snapshots.

    ``words`` describes what the thread is doing.
    """

    def find(evidence: Evidence) -> list[Blocker]:
        seen = Counter(tid for one in evidence.snapshots for tid in one.doing.get(activity, ()))
        if not seen:
            return []
        tid, _ = seen.most_common(1)[0]
        stack = next((one.functions for one in evidence.seen if tid in one.tids), ())
        statement_ = next((one for one in evidence.statements if one.tid == tid), None)
        if statement_ is None:
            return [Blocker(f"thread {tid}, which {words}", stack, thread=tid)]
        who = f"connection {statement_.connection} (thread {tid}){_account(statement_)}"
        runs = f", runs: {statement_.named}" if statement_.text else ""
        line = f"{who}, which {words}{runs}"
        return [Blocker(line, stack, thread=tid, connection=statement_.connection, digest=statement_.digest)]

    return find


def ddl(evidence: Evidence) -> list[Blocker]:
    """Return the running DDL, from the process list or else from the stacks."""
    if listed := cluster.ddl_statements(evidence):
        return [Blocker(_executes(one), connection=one.connection, digest=one.digest) for one in listed]
    found = {tid: seen.functions for seen in cluster.ddl_stacks(evidence) for tid in seen.tids}
    return [Blocker(f"thread {tid} executes DDL", stack, thread=tid) for tid, stack in found.items()]


def _executes(one: ConnectionActivity) -> str:
    doing = f"{one.state or one.command} for {one.seconds:,} s: {one.named}"
    return f"connection {one.connection}{_account(one)}, {doing}"


def group_member(evidence: Evidence) -> list[Blocker]:
    """Return the unreachable members of the group, or else the member with the longest applier queue."""
    if lost := cluster.unreachable(evidence):
        return [Blocker(f"member {row['member']} is unreachable") for row in lost]
    slowest = max(cluster.group_members(evidence), key=cluster.applier_queue)
    queue = cluster.applier_queue(slowest)
    words = f"member {slowest['member']}: applier queue of {queue:,} transactions"
    return [Blocker(words)] if queue else []


#: Functions that find blockers, by the value of ``blocker`` in a rule. They may raise Unknown.
BLOCKERS: Final[Mapping[str, Callable[[Evidence], list[Blocker]]]] = {
    "row_lock": row_lock,
    "metadata_lock": metadata_lock,
    "oldest_transaction": oldest_transaction,
    "runner": runner,
    "applier": applier,
    "rollback": busiest("rollback", "rolls back its transaction"),
    "binlog_copy": busiest("binlog_copy", "copies its transaction to the binary log"),
    "ddl": ddl,
    "group_member": group_member,
    "latch": latch("mutex_wait", "spin"),
    "user_lock": latch("user_lock"),
    "opening_tables": latch("opening_tables"),
}
