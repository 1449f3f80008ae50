"""Describe each root of the blocking graph in one line: its lock, activity and waiters."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from innoscope.diagnose.graph import Graph
from innoscope.sampling.lock_sections import call_path, own_functions

if TYPE_CHECKING:
    from innoscope.diagnose.evidence import Evidence
    from innoscope.diagnose.graph import Edge, Root
    from innoscope.memory.locks.held import HeldLock

#: Maximum number of roots to show.
_SHOWN: Final = 2
#: A root is shown only if it has at least this share of the first root's waiters.
_SHARE: Final = 0.2


@dataclass(frozen=True, slots=True)
class Blocker:
    """A lock owner: its description, and its stack if known, innermost function first.

    ``thread`` and ``connection`` are the owner's ids if known. ``lock`` describes the lock, and ``waiting``
    is the number of threads waiting for it. ``through`` lists the known thread ids of the lock owners between
    the waiters and this owner (docs/json.md). ``digest`` is the id of the owner's statement.
    """

    words: str
    stack: tuple[str, ...] = ()
    thread: int | None = None
    connection: int | None = None
    lock: str | None = None
    waiting: int | None = None
    through: tuple[int, ...] = ()
    digest: str | None = None


def blockers(evidence: Evidence, *waits: str) -> list[Blocker]:
    """Return the lock owners that ultimately block the most threads in ``waits``; empty if none is known."""
    graph = Graph(evidence)
    roots = graph.roots(waits)
    if not roots:
        return []
    enough = [root for root in roots if root.waiting >= _SHARE * roots[0].waiting]
    return [_blocker(root, graph, evidence) for root in enough[:_SHOWN]]


def _blocker(root: Root, graph: Graph, evidence: Evidence) -> Blocker:
    last = root.path[-1]
    stack = last.held.stack if last.held and last.held.stack else _stack(root.node, evidence)
    owner = f"{_who(root.node, graph)} holds {root.lock}{_in_turn(last.held)}"
    line = f"{', '.join([owner, *_activity(root, graph, evidence)])}; {_waiting(root, graph)}"
    statement = graph.statement(root.node)
    return Blocker(
        words=line,
        stack=stack,
        thread=root.node if root.node > 0 else None,
        connection=statement.connection if statement else -root.node if root.node < 0 else None,
        lock=root.lock,
        waiting=root.waiting,
        through=tuple(edge.owner for edge in root.path[:-1] if edge.owner > 0),
        digest=statement.digest if statement else None,
    )


def _who(node: int, graph: Graph) -> str:
    """Return a name such as ``connection 42 (thread 1234, app@web1)``, omitting unknown parts."""
    statement = graph.statement(node)
    user = f"{statement.user}@{statement.host}" if statement and statement.user else ""
    thread = f"thread {node}" if node > 0 else ""
    about = ", ".join(part for part in (thread, user) if part)
    connection = statement.connection if statement else -node if node < 0 else None
    if connection is None:
        return about
    return f"connection {connection} ({about})" if about else f"connection {connection}"


def _in_turn(held: HeldLock | None) -> str:
    """Return a remark if several threads held the lock one after another: no single owner is the cause."""
    return f" (one of {held.owners} that held it in turn)" if held and held.owners > 1 else ""


def _activity(root: Root, graph: Graph, evidence: Evidence) -> list[str]:
    held, statement = root.path[-1].held, graph.statement(root.node)
    found = []
    if held and held.stack and held.owner_wait != "idle":
        function = call_path(held.stack, _common_functions(held, evidence))
        found.append(f"inside {function} ({_readable(held.owner_wait)})")
    if statement is None:
        return found
    if statement.text:
        found.append(f"runs: {statement.named}")
    elif statement.command == "Sleep" or (held and held.owner_wait == "idle"):
        found.append("idle" + (f" for {statement.seconds:,} s" if statement.seconds else ""))
    return found


def _common_functions(held: HeldLock, evidence: Evidence) -> set[str]:
    """Return the functions on waiters' stacks that occur at least half as often as the most frequent one."""
    functions: Counter[str] = Counter()
    for seen in evidence.seen:
        if not set(seen.tids).isdisjoint(held.waiters):
            functions.update(dict.fromkeys(own_functions(seen.functions), seen.count))
    return {name for name, count in functions.items() if 2 * count >= functions.most_common(1)[0][1]}


def _waiting(root: Root, graph: Graph) -> str:
    """Return a phrase such as ``899 wait for it``, with the threads between the waiters and the root."""
    words = f"{waiting(root.waiting)} for it"
    between = [f"{_who(edge.owner, graph)}, which holds {edge.lock}" for edge in root.path[:-1]]
    if root.cycle:
        ring = " → ".join(_who(edge.waiter, graph) for edge in _ring(root))
        return f"{words}, in a cycle: {ring} → again"
    return f"{words}, through {' and '.join(between)}" if between else words


def waiting(threads: int) -> str:
    """Return a phrase such as ``1 waits`` or ``899 wait``."""
    return f"{threads:,} wait{'s' if threads == 1 else ''}"


def _ring(root: Root) -> list[Edge]:
    """Return the part of the path that forms a cycle."""
    start = next(place for place, edge in enumerate(root.path) if edge.waiter == root.node)
    return list(root.path[start:])


def _stack(node: int, evidence: Evidence) -> tuple[str, ...]:
    return next((seen.functions for seen in evidence.seen if node in seen.tids), ())


def _readable(wait: str) -> str:
    return wait.replace("_", " ")
